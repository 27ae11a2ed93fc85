"""Installs the files that share containers mount: the library, and the preload file that makes the loader load it.

A library must never change while a process has it mapped. So each version has its own file, named by a hash of its
content and moved into place when complete. `old_libraries` removes files that are no longer used.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from pathlib import Path
from typing import Final

from deviceplugin.disk import whole_file
from gpushare import contract

PREFIX_LENGTH: Final = 16
STEM: Final = "libgpushare-"
PATTERN: Final = f"{STEM}{'[0-9a-f]' * PREFIX_LENGTH}.so"  # matches every version
LIBRARY_MODE: Final = 0o755
_ELF: Final = b"\x7fELF"


class LibraryError(Exception):
    """The library cannot be installed; the message names the file and the remedy."""


@dataclasses.dataclass(frozen=True, slots=True)
class Installed:
    """The host paths of the library and its preload file."""

    library: Path
    preload_file: Path


def install(source: Path, *, root: Path) -> Installed:
    """Install `source` below `root`. Idempotent. Raises LibraryError."""
    try:
        content = source.read_bytes()
    except OSError as error:
        raise LibraryError(f"{source} cannot be read ({error.strerror}): --library must name libgpushare.so") from error
    if not content.startswith(_ELF):
        raise LibraryError(f"{source} is not a shared library: --library must name libgpushare.so")
    name = f"{STEM}{hashlib.sha256(content).hexdigest()[:PREFIX_LENGTH]}.so"
    installed = Installed(root / "lib" / name, root / "ld.so.preload")
    try:
        # The loader ignores a preload file that it cannot read, so both files must survive a crash of the node.
        whole_file.write_if_changed(installed.library, content, mode=LIBRARY_MODE, lasting=True)
        whole_file.write_if_changed(installed.preload_file, f"{contract.CONTAINER_LIBRARY}\n", lasting=True)
        flags = os.statvfs(root).f_flag
    except OSError as error:
        raise LibraryError(
            f"{error.filename or root} cannot be written ({error.strerror}): --root must name a directory of the host"
        ) from error
    if flags & os.ST_NOEXEC:
        # The loader would only warn on the program's stderr, and run it without the library.
        raise LibraryError(
            f"{root} is mounted noexec, so no program can load a library from it: --root must name a directory of the "
            "host that is not, such as /home/kubernetes/bin/gpushare on Container-Optimized OS"
        )
    return installed
