"""A node's OCI runtime: a script that passes some `create` calls through `lab/runtime/create.py`, and all calls to
runc.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from lab import lab_layout, node_mounts, prerequisites
from lab.runtime import create

HERE = Path(__file__).resolve().parent
# The simulated driver, as built by `make`.
LIBRARIES = HERE.parent / "build" / "simgpu"
# A container's start calls the runtime about six times, and few containers have a GPU. So Python starts only for those.
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
    """Return the directory of a node's CDI files."""
    return node_mounts.inside_directory(lab, node, "/run/cdi")


def script(devices: Path, libraries: Path, cdi: Path, runc: str) -> str:
    """Return the runtime script for a node with these GPUs, driver libraries and CDI files."""
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
    """Write the runtime script of a node."""
    scratch = path.with_name(path.name + ".new")
    scratch.write_text(script(lab.gpus(node), LIBRARIES, cdi_directory(lab, node), prerequisites.program("runc")))
    scratch.chmod(0o755)
    scratch.rename(path)  # atomically, because a container may be starting
