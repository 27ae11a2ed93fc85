"""Compiles the Python files of a tree with the image's own interpreter, run through its own loader.

So the machine's Python version does not matter, and no file is compiled when a pod starts, on a read-only root. The
compiled files are not checked against their source, because both are in the same layer.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from config.images import contents
from config.images.tree import Node, Tree
from lab import lab_errors

LOADERS = {"amd64": "usr/lib64/ld-linux-x86-64.so.2", "arm64": "usr/lib/ld-linux-aarch64.so.1"}


def command(system: Path, architecture: str) -> list[str]:
    """Return the command that runs the interpreter of a file system at `system`, without chroot."""
    libraries = system / f"usr/lib/{contents.MACHINES[architecture]}-linux-gnu"
    interpreter = system / f"usr/bin/python{contents.PYTHON}"
    return [str(system / LOADERS[architecture]), "--library-path", str(libraries), str(interpreter)]


def compile_all(tree: Tree, system: Path, architecture: str) -> None:
    """Add the compiled modules to a tree.

    Raises:
        LabError: a module cannot be compiled.
    """
    with tempfile.TemporaryDirectory(prefix="gpushare-image-") as scratch:
        root = Path(scratch)
        for path, node in tree:
            if path.endswith(".py"):
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(node.content)
        options = ["-q", "-j1", "--invalidation-mode=unchecked-hash", "-s", scratch, "-p", "/", scratch]
        result = subprocess.run(
            [*command(system, architecture), "-S", "-m", "compileall", *options],
            env={"PYTHONHOME": str(system / "usr"), "PYTHONHASHSEED": "0", "PATH": os.defpath},
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            raise lab_errors.LabError(f"the image's Python could not compile: {result.stdout}{result.stderr}")
        for compiled in root.rglob("*.pyc"):
            tree.put(compiled.relative_to(root).as_posix(), Node(content=compiled.read_bytes()))
