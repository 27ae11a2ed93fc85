"""Times and ages as kubectl shows them: `45s`, `5m30s`, `3h12m`, `2d`."""

from __future__ import annotations

from gpushare import codec

_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 365 * 86400

# below so many seconds: (unit, letter, smaller unit or 0, its letter)
_STEPS = (
    (2 * _MINUTE, 1, "s", 0, ""),
    (10 * _MINUTE, _MINUTE, "m", 1, "s"),
    (3 * _HOUR, _MINUTE, "m", 0, ""),
    (8 * _HOUR, _HOUR, "h", _MINUTE, "m"),
    (2 * _DAY, _HOUR, "h", 0, ""),
    (8 * _DAY, _DAY, "d", _HOUR, "h"),
    (2 * _YEAR, _DAY, "d", 0, ""),
    (8 * _YEAR, _YEAR, "y", _DAY, "d"),
)


def text(seconds: float) -> str:
    """Return an age, coarser the older it is; a negative one (clocks differ) is `0s`."""
    whole = max(0, int(seconds))
    for below, unit, letter, smaller, smaller_letter in _STEPS:
        if whole < below:
            rest = whole % unit // smaller if smaller else 0
            return f"{whole // unit}{letter}" + (f"{rest}{smaller_letter}" if rest else "")
    return f"{whole // _YEAR}y"


def since(moment: str, *, now: float) -> str:
    """Return the age of an RFC 3339 time; empty if there is none or it is invalid."""
    try:
        return text(now - codec.parse_time(moment)) if moment else ""
    except ValueError:
        return ""
