"""The wheels of an image: its part of requirements.lock, by hash, for its processor."""

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
    """Lay out the wheels that requirements name; return name and version of each.

    By uv: pip takes a hundred times as long to choose wheels of another platform.

    Raises:
        LabError: uv could not.
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
    """Put what was laid out into a tree, where the image's interpreter looks."""
    left_out = contents.pattern(contents.WHEEL_FILES_LEFT_OUT)
    for path in directory.rglob("*"):
        inside = path.relative_to(directory).as_posix()
        if path.is_file() and not left_out.match(inside):
            tree.put(f"{contents.SITE}/{inside}", Node(content=path.read_bytes()))
