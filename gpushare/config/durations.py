"""Durations as Go programs write them: `60s`, `1h30m`, `1.5ms`; a bare number is nanoseconds."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from gpushare import errors

FOREVER_NANOSECONDS: Final = 2**63 - 1  # written `infinite`

_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_PART = re.compile(r"([0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(ns|us|µs|μs|ms|s|m|h)")


def parse(text: str) -> int:
    """Return nanoseconds, rounded down. Raises ConfigError, a sentence without its subject."""
    if text == "infinite":
        return FOREVER_NANOSECONDS
    sign, body = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
    if body == "0":
        return 0
    total = Fraction(0)
    position = 0
    while match := _PART.match(body, position):
        total += Fraction(match[1]) * _UNITS[match[2]]
        position = match.end()
    if position == 0 or position != len(body):
        raise errors.ConfigError('is not a duration: write a number with a unit, such as "60s", "1h30m" or "infinite"')
    if total > FOREVER_NANOSECONDS:
        raise errors.ConfigError('exceeds the maximum duration: write "infinite"')
    return sign * int(total)


def format_nanoseconds(nanoseconds: int) -> str:
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
