"""The fuzz targets: each row is a module of `targets` whose `run` raises if a law is broken, or a program in C."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
CASES = Path(__file__).parent / "cases"


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A fuzz target.

    kind: the kind of its inputs; `headed`: JSON or other data after a line that names it. longest: the maximum input in
    bytes. native: it is `c/NAME.c`.
    """

    kind: Literal["json", "headed", "bytes"]
    longest: int = 4096
    native: bool = False


PYTHON: Mapping[str, Target] = {
    "reviews": Target("json", 8192),
    "annotations": Target("json"),
    "syntaxes": Target("json"),
    "configurations": Target("bytes"),
    "gpunodes": Target("json", 8192),
    "client_messages": Target("bytes"),
    "arbiter_messages": Target("json"),
    "kubelet_calls": Target("bytes", 1024),
    "agent_files": Target("headed"),
    "saved_clusters": Target("headed", 16384),
    "metrics": Target("bytes"),
    "audits": Target("json"),
}
NATIVE: Mapping[str, Target] = {
    "answers": Target("bytes", 4096, native=True),
    "pages": Target("bytes", 8192, native=True),
    "libraries": Target("bytes", 8192, native=True),
    "descriptions": Target("bytes", 4096, native=True),
    "images": Target("bytes", 1024, native=True),
}
TARGETS: Mapping[str, Target] = {**PYTHON, **NATIVE}
# Has a fault that the fuzzer must find.
PLANTED: Mapping[str, Target] = {"planted": Target("bytes", 64), "planted_c": Target("bytes", 64, native=True)}


def of(name: str) -> Target:
    """Return the target of that name."""
    return {**TARGETS, **PLANTED}[name]


def cases(name: str) -> list[Path]:
    """Return the kept inputs of a target."""
    return sorted(path for path in (CASES / name).iterdir() if path.is_file())
