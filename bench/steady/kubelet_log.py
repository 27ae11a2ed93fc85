"""A kubelet's events from its own log: its starts, the pods it rejected, the plugins that registered. Pure.

A rejection of a pod that is deleted soon after appears nowhere else, and others reach the API server seconds later.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass

# klog: severity, month and day, time of day in local time, thread, place.
_LINE = re.compile(r"[IWEF](\d{4} \d\d:\d\d:\d\d)\.(\d{6})\s+\d+ \S+\] (.*)")
_DENIED = re.compile(r'"Pod admission denied" podUID="(\S+)" pod="(\S+)" reason="(\S+)" message="(.*)"')
_REGISTERS = re.compile(r'"Got registration request from device plugin with resource" resourceName="(\S+)"')
_DEVICES = re.compile(r'"Processed device updates for resource" resourceName="(\S+)"')
_STARTS = '"Starting Kubelet Plugin Manager"'  # logged just after it has created its socket


@dataclass(frozen=True)
class Refusal:
    """A rejected pod, whose containers will never run."""

    at: float
    uid: str
    pod: str
    reason: str
    message: str


def refusals(lines: Iterable[str]) -> list[Refusal]:
    """Return all rejections."""
    matches = ((at, _DENIED.match(text)) for at, text in _read(lines))
    return [Refusal(at, *match.groups()) for at, match in matches if match]


def starts(lines: Iterable[str]) -> list[float]:
    """Return when the kubelet began to accept plugins."""
    return [at for at, text in _read(lines) if text.startswith(_STARTS)]


def listings(lines: Iterable[str], resource: str) -> list[float]:
    """Return when it first had the devices of this resource's plugin after each registration."""
    moments: list[float] = []
    is_due = False
    for at, text in _read(lines):
        if (match := _REGISTERS.match(text)) and match[1] == resource:
            is_due = True
        elif is_due and (match := _DEVICES.match(text)) and match[1] == resource:
            moments.append(at)
            is_due = False
    return moments


def _read(lines: Iterable[str]) -> Iterable[tuple[float, str]]:
    year = time.localtime().tm_year
    for line in lines:
        if match := _LINE.match(line):
            when = time.strptime(f"{year}{match[1]}", "%Y%m%d %H:%M:%S")
            yield time.mktime(when) + int(match[2]) / 1e6, match[3]
