"""The OCI runtime of a node: a script that hands some `create` calls to `lab/runtime/create.py`, and all to runc."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from lab import lab_layout, node_mounts, prerequisites
from lab.runtime import create

HERE = Path(__file__).resolve().parent
# The simulated driver, as built by `make`.
LIBRARIES = HERE.parent / "build" / "simgpu"
# A container's start calls the runtime half a dozen times, and few containers have a GPU: only these wait for an
# interpreter.
SCRIPT = """\
#!/bin/sh
previous= bundle=. create=
for argument; do
    case $previous in --bundle | -b) bundle=$argument ;; esac
    case $argument in create) create=yes ;; --bundle=*) bundle=${{argument#--bundle=}} ;; esac
    previous=$argument
done
if [ "$create" ] && grep -qE {words} "$bundle/config.json"; then
    {python} -S -E {program} {devices} {libraries} {cdi} "$@" || exit 1
fi
exec {runc} "$@"
"""


def cdi_directory(lab: lab_layout.Layout, node: lab_layout.Node) -> Path:
    """Where a node's devices are described for the runtime."""
    return node_mounts.inside_directory(lab, node, "/run/cdi")


def script(devices: Path, libraries: Path, cdi: Path, runc: str) -> str:
    """Return the runtime of a node with these GPUs, libraries of the driver, and CDI files."""
    words: dict[str, str | Path] = {
        "words": f"{create.VARIABLE}|{create.CDI_ANNOTATIONS}",
        "python": sys.executable,
        "program": HERE / "runtime" / "create.py",
        "devices": devices,
        "libraries": libraries,
        "cdi": cdi,
        "runc": runc,
    }
    return SCRIPT.format_map({key: shlex.quote(str(value)) for key, value in words.items()})


def write(lab: lab_layout.Layout, node: lab_layout.Node, path: Path) -> None:
    """Write the runtime of one node."""
    scratch = path.with_name(path.name + ".new")
    scratch.write_text(script(lab.gpus(node), LIBRARIES, cdi_directory(lab, node), prerequisites.program("runc")))
    scratch.chmod(0o755)
    scratch.rename(path)  # in one step: a container may be starting
