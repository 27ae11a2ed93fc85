"""Kubernetes quantities and fractions of a GPU, as exact integers (bytes and percent), and Kubernetes times.

Grammar of quantities: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import datetime
import re
from typing import TYPE_CHECKING

from gpushare import errors

if TYPE_CHECKING:
    from fractions import Fraction

# Patterns are compiled, and fractions imported, only when there is a text to parse: commands that only show figures
# start without them.
_QUANTITY = r"([0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE])|[eE]([+-]?[0-9]{1,2}))?"
_BINARY = {suffix: 1024**power for power, suffix in enumerate(("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))}
_DECIMAL = dict(zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True))  # powers of ten
_COMPUTE = r"([0-9]{1,6}(?:\.[0-9]{0,6})?|\.[0-9]{1,6})(%|m)?"


def parse(text: str) -> Fraction:
    """Return the exact value of a non-negative Kubernetes quantity such as `8Gi`, `1.5`, `500m`, `1e3`."""
    from fractions import Fraction

    match = re.fullmatch(_QUANTITY, text)
    if match is None:
        said = 'is not a quantity: write a number with an optional unit, such as "8Gi"'
        raise errors.QuantityError(f"{errors.quoted(text)} {said}")
    number, suffix, exponent = match.groups()
    value = Fraction(number)
    if suffix:
        return value * (_BINARY[suffix] if suffix in _BINARY else Fraction(10) ** _DECIMAL[suffix])
    return value * Fraction(10) ** int(exponent) if exponent else value


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return `1 node`, `3 nodes`."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def parse_bytes(text: str) -> int:
    """Return whole bytes, rounded up as Kubernetes does; more than 2^63-1 is an error."""
    value = parse(text)
    whole = -(-value.numerator // value.denominator)
    if whole >= 2**63:  # the API server's maximum
        raise errors.QuantityError(f"{errors.quoted(text)} exceeds the maximum of 2^63-1 bytes")
    return whole


def parse_compute(text: str) -> int:
    """Return percent of one GPU from `0.5`, `50%` or `500m`: 0 to 100, a whole number."""
    from fractions import Fraction

    match = re.fullmatch(_COMPUTE, text)
    if match is None:
        raise errors.QuantityError('is not a part of a GPU: write it as "0.5", "50%" or "500m"')
    number, unit = match.groups()
    percent = Fraction(number) * {"%": Fraction(1), "m": Fraction(1, 10), None: Fraction(100)}[unit]
    if percent > 100:
        said = "is more than one GPU: write 0 to 1 in steps of 0.01, and gpushare.io/gpus for more GPUs"
        raise errors.QuantityError(said)
    if percent.denominator != 1:
        raise errors.QuantityError("is finer than 0.01 of a GPU: write 0 to 1 in steps of 0.01")
    return int(percent)


def format_bytes(count: int) -> str:
    """Return the shortest exact or three-digit text: `8Gi`, `1.5Gi`, `640Mi`, `1000`."""
    for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
        unit = _BINARY[suffix]
        if count >= unit:
            if count % unit == 0:
                return f"{count // unit}{suffix}"
            value = count / unit
            return f"{value:.3g}{suffix}" if value < 999.5 else f"{value:.0f}{suffix}"  # three digits would be 1e+03
    return str(count)


def format_exactly(count: int) -> str:
    """Return `8Gi`, `12544Mi`, or a plain number of bytes: never rounded, for text that users copy into a manifest."""
    for unit, suffix in ((1 << 30, "Gi"), (1 << 20, "Mi")):
        if count % unit == 0:
            return f"{count // unit}{suffix}"
    return str(count)


def format_compute(percent: int) -> str:
    """Return a fraction of a GPU as in a manifest: `0.5`, `0.25`, `1`."""
    return f"{percent / 100:g}"


def parse_time(text: str) -> float:
    """Return an RFC 3339 time as Unix seconds."""
    return datetime.datetime.fromisoformat(text).timestamp()


def format_time(seconds: float) -> str:
    """Return a time as RFC 3339 in UTC, to the microsecond (Kubernetes' MicroTime)."""
    moment = datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
