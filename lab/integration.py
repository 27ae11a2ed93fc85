"""Builds other projects' programs for tests with gpushare next to them, and finds their manifests.

Each has its own Go module in `integrations/`, which pins its version: their dependencies exclude each other. The
manifests are those of the same release, in Go's module cache.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from pathlib import Path
from typing import Final

from lab import go_build, lab_errors

MODULES: Final = Path(__file__).parent / "integrations"
_NVIDIA: Final = "github.com/NVIDIA/k8s-device-plugin"


@dataclasses.dataclass(frozen=True, slots=True)
class _Program:
    """A program's source. module: its version counts. minutes: of a build on two idle cores. cgo: as in `Build`."""

    module: str
    package: str
    minutes: int
    cgo: bool = False


_PROGRAMS: Final = {
    "karpenter": _Program("sigs.k8s.io/karpenter", "sigs.k8s.io/karpenter/kwok", 2),
    "kueue": _Program("sigs.k8s.io/kueue", "sigs.k8s.io/kueue/cmd/kueue", 4),
    "metrics-adapter": _Program("sigs.k8s.io/custom-metrics-apiserver", ".", 2),
    # Its NVML binding is C.
    "nvidia-device-plugin": _Program(_NVIDIA, f"{_NVIDIA}/cmd/nvidia-device-plugin", 2, cgo=True),
}


def ensure(name: str) -> Path:
    """Return the path of a program; build it if it is missing.

    Raises:
        LabError: there is no Go, or the build failed.
    """
    made = _PROGRAMS[name]
    build = go_build.Build(
        title=name,
        version=version(name),
        module=MODULES / name,
        package=made.package,
        program=name,
        minutes=made.minutes,
        cgo=made.cgo,
    )
    return go_build.ensure(build) / name


def version(name: str) -> str:
    """Return a program's version, as `v0.19.2`."""
    return go_build.required_version(MODULES / name, _PROGRAMS[name].module)


def ensure_all() -> None:
    """Build all programs that are missing. Raises LabError."""
    for name in _PROGRAMS:
        ensure(name)


def source(name: str) -> Path:
    """Return the directory of the program's own module, downloaded if it is missing.

    Raises:
        LabError: it could not be downloaded.
    """
    command = [go_build.program(), "mod", "download", "-json", _PROGRAMS[name].module]
    environment = {**os.environ, "GOFLAGS": "-mod=readonly"}
    result = subprocess.run(command, cwd=MODULES / name, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        raise lab_errors.LabError(f"the manifests of {name} could not be downloaded: {result.stderr or result.stdout}")
    return Path(json.loads(result.stdout)["Dir"])
