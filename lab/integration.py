"""Builds other projects' programs for tests with gpushare next to them, and finds their manifests.

Each has a Go module of its own in `integrations/`, which pins its version: their dependencies exclude each other. The
manifests are those of the same release, in Go's module cache.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Final

from lab import go_build, lab_errors

MODULES: Final = Path(__file__).parent / "integrations"
# By program: the Go module whose version counts, the package, and the minutes that a build takes on two idle cores.
_PROGRAMS: Final = {
    "karpenter": ("sigs.k8s.io/karpenter", "sigs.k8s.io/karpenter/kwok", 2),
    "kueue": ("sigs.k8s.io/kueue", "sigs.k8s.io/kueue/cmd/kueue", 4),
    "metrics-adapter": ("sigs.k8s.io/custom-metrics-apiserver", ".", 2),
}


def ensure(name: str) -> Path:
    """Return the path of a program; build it if it is missing.

    Raises:
        LabError: there is no Go, or the build failed.
    """
    module, package, minutes = _PROGRAMS[name]
    build = go_build.Build(
        title=name,
        version=go_build.required_version(MODULES / name, module),
        module=MODULES / name,
        package=package,
        program=name,
        minutes=minutes,
    )
    return go_build.ensure(build) / name


def ensure_all() -> None:
    """Build all programs that are missing. Raises LabError."""
    for name in _PROGRAMS:
        ensure(name)


def source(name: str) -> Path:
    """Return the directory of the program's own module, downloaded if it is missing.

    Raises:
        LabError: it could not be downloaded.
    """
    module = _PROGRAMS[name][0]
    command = [go_build.program(), "mod", "download", "-json", module]
    environment = {**os.environ, "GOFLAGS": "-mod=readonly"}
    result = subprocess.run(command, cwd=MODULES / name, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        raise lab_errors.LabError(f"the manifests of {name} could not be downloaded: {result.stderr or result.stdout}")
    return Path(json.loads(result.stdout)["Dir"])
