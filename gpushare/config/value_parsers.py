"""Parses the values of a configuration that have a special form: durations, resource names, devices."""

from __future__ import annotations

import enum
import fnmatch
import re
from fractions import Fraction
from typing import Final

from gpushare import errors

FOREVER_NANOSECONDS: Final = 2**63 - 1  # written `infinite`
RESOURCE_PREFIX: Final = "nvidia.com/"
GPU_RESOURCE: Final = "nvidia.com/gpu"
MAX_NAME: Final = 63

# In nanoseconds; the sign of micro is two characters of Unicode.
_MICRO: Final = {"us": 10**3, "µs": 10**3, "μs": 10**3}
_UNITS: Final = _MICRO | {"ns": 1, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_PART: Final = re.compile(r"([0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(ns|us|µs|μs|ms|s|m|h)")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_NUMBER: Final = r"(?:0|[1-9][0-9]{0,18}|0[0-9]{1,18})"
_UUID: Final = r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"


def parse_duration(text: str) -> int:
    """Return nanoseconds, rounded down. Raises ConfigError, a sentence without its subject."""
    if text == "infinite":
        return FOREVER_NANOSECONDS
    sign, body = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
    if body == "0":
        return 0
    total, position = Fraction(0), 0
    while match := _PART.match(body, position):
        total += Fraction(match[1]) * _UNITS[match[2]]
        position = match.end()
    if position == 0 or position != len(body):
        raise errors.ConfigError('is not a duration: write a number with a unit, such as "60s", "1h30m" or "infinite"')
    if total > FOREVER_NANOSECONDS:
        raise errors.ConfigError('exceeds the maximum duration: write "infinite"')
    return sign * int(total)


def format_duration(nanoseconds: int) -> str:
    """Return a duration as text: `0s`, `5ns`, `1.5µs`, `1m0s`, `1h0m0s`, `infinite`."""
    if nanoseconds == FOREVER_NANOSECONDS:
        return "infinite"
    sign, rest = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if rest == 0:
        return "0s"
    for unit in ("ns", "µs", "ms"):
        if rest < _UNITS[unit] * 1000:
            return f"{sign}{_decimal(rest, _UNITS[unit])}{unit}"
    hours, rest = divmod(rest, _UNITS["h"])
    minutes, rest = divmod(rest, _UNITS["m"])
    seconds = f"{_decimal(rest, _UNITS['s'])}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{seconds}"
    return f"{sign}{minutes}m{seconds}" if minutes else f"{sign}{seconds}"


def _decimal(count: int, unit: int) -> str:
    whole, rest = divmod(count, unit)
    digits = len(str(unit)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0").rstrip(".") if rest else str(whole)


def parse_resource_name(text: str) -> str:
    """Return the full name: `gpu` is `nvidia.com/gpu`. Raises ConfigError, a sentence without its subject."""
    name = text if text.startswith(RESOURCE_PREFIX) else RESOURCE_PREFIX + text
    if len(name) > MAX_NAME:
        said = f"fully-qualified resource name must be {MAX_NAME} characters or less, not {len(name)}"
        raise errors.ConfigError(said)
    if not _SUBDOMAIN.fullmatch(name.removeprefix(RESOURCE_PREFIX)):
        raise errors.ConfigError(
            f"incorrect format for resource name: write {RESOURCE_PREFIX} and then lower-case letters, digits, '-' and "
            "'.', with a letter or digit at both ends"
        )
    return name


def shared_name(name: str) -> str:
    """Return the name that `renameByDefault` gives. It may be longer than `MAX_NAME`; Kubernetes accepts it."""
    return f"{name}.shared"


def matches(pattern: str, text: str) -> bool:
    """Whether `text` matches `pattern`, in which `*` stands for anything and all else for itself."""
    return fnmatch.fnmatchcase(text, pattern.replace("[", "[[]").replace("?", "[?]"))


class ReferenceKind(enum.StrEnum):
    """The kind of a reference to a GPU or MIG device: an index, a UUID, a model."""

    GPU_INDEX = "gpuIndex"  # 0
    MIG_INDEX = "migIndex"  # 0:1
    UUID = "uuid"


def is_gpu_uuid(text: str) -> bool:
    """Whether the text is the UUID of a GPU: `GPU-…`."""
    return re.fullmatch(f"GPU-{_UUID}", text) is not None


def is_mig_uuid(text: str) -> bool:
    """Whether the text is the UUID of a MIG device, also in the form of old drivers: `MIG-GPU-…/1/0`."""
    return re.fullmatch(f"MIG-{_UUID}|MIG-GPU-{_UUID}/{_NUMBER}/{_NUMBER}", text) is not None


def reference_kind(text: str) -> ReferenceKind | None:
    """Return how `text` refers to a device, or None if it does not."""
    if re.fullmatch(_NUMBER, text):
        return ReferenceKind.GPU_INDEX
    if re.fullmatch(f"{_NUMBER}:{_NUMBER}", text):
        return ReferenceKind.MIG_INDEX
    return ReferenceKind.UUID if is_gpu_uuid(text) or is_mig_uuid(text) else None
