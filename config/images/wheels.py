"""Installs an image's wheels: its part of requirements.lock, by hash, for its architecture."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from config.images import contents
from config.images.tree import Node, Tree
from lab import lab_errors

GLIBC = "2_36"  # Debian 12's


def install(requirements: str, architecture: str, directory: Path) -> list[tuple[str, str]]:
    """Unpack the required wheels; return the name and version of each.

    Uses uv: pip takes a hundred times as long to choose wheels for another platform.

    Raises:
        LabError: uv failed.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(requirements)
        file.flush()
        command = [
            *(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps"),
            *("--require-hashes", "--only-binary=:all:", f"--requirement={file.name}", f"--target={directory}"),
            *(f"--python-platform={contents.MACHINES[architecture]}-manylinux_{GLIBC}", "--link-mode=copy"),
            f"--python-version={contents.PYTHON}",
        ]
        if subprocess.run(command, check=False, stdout=2).returncode:
            raise lab_errors.LabError(f"uv could not get the wheels of requirements.lock for {architecture}; see above")
    matches = (re.match(r"(.+)-(.+)\.dist-info$", path.name) for path in sorted(directory.iterdir()))
    return [(match[1].replace("_", "-").lower(), match[2]) for match in matches if match]


def add(directory: Path, tree: Tree) -> None:
    """Add the unpacked wheels to a tree, on the interpreter's search path."""
    left_out = contents.pattern(contents.WHEEL_FILES_LEFT_OUT)
    for path in directory.rglob("*"):
        inside = path.relative_to(directory).as_posix()
        if path.is_file() and not left_out.match(inside):
            tree.put(f"{contents.SITE}/{inside}", Node(content=path.read_bytes()))
