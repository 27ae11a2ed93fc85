"""Logs as JSON, one line each, on stderr, with the keys of Kubernetes' own components.

`ts` (RFC 3339, UTC), `v` (the level's name), `msg`, `err`, then the call's `extra`. Values are never part of the
message, so that lines can be counted and searched by message. Objects are written as {"namespace": …, "name": …}.
"""

from __future__ import annotations

import datetime
import json
import logging
import sys
from typing import Any, Final, TextIO

from gpushare import printable

LEVELS: Final = ("debug", "info", "warning", "error")

# The attributes of every LogRecord; all others came as `extra`.
_OWN: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


def configure(level: str, component: str, *, stream: TextIO | None = None) -> None:
    """Send all logs of this process to `stream` (stderr), from `level` (one of LEVELS) on.

    component: added to each line, to tell apart logs that are collected together.

    Raises ValueError for an unknown level.
    """
    if level not in LEVELS:
        raise ValueError(f"log level {level!r} does not exist; use one of {', '.join(LEVELS)}")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(component))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)


class JsonLines(logging.Formatter):
    """One JSON object per line, all printable. Every record yields a line: other values become text."""

    def __init__(self, component: str) -> None:
        super().__init__()
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for `record`."""
        line: dict[str, Any] = {"ts": _timestamp(record.created), "v": record.levelname.lower()}
        line["msg"] = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            line["err"] = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        line["component"] = self._component
        line["logger"] = record.name
        extra = {key: value for key, value in record.__dict__.items() if key not in _OWN}
        line.update({key if key not in line or key == "err" else f"{key}_": extra[key] for key in extra})
        if record.exc_info:
            line["stack"] = self.formatException(record.exc_info)
        try:
            text = json.dumps(line, ensure_ascii=False, allow_nan=False, default=str)
        except (TypeError, ValueError):  # NaN, a key that is not a string, a cycle
            text = json.dumps({str(key): _plain(value) for key, value in line.items()}, ensure_ascii=False)
        return printable.escaped(text)


def _timestamp(seconds: float) -> str:
    """Return a time as Kubernetes writes it, to the millisecond: 2026-11-27T19:52:34.123Z."""
    when = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int)) else str(value)
