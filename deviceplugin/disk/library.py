"""Puts on the host what share containers get mounted: the library, and the file that makes the loader load it.

A library that a process has mapped must never change under it, so each version has a file of its own, named by its
content, made under another name and moved into place. Old ones stay as long as somebody may need them: `old_libraries`.
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
PATTERN: Final = f"{STEM}{'[0-9a-f]' * PREFIX_LENGTH}.so"  # the files of all versions
LIBRARY_MODE: Final = 0o755
_ELF: Final = b"\x7fELF"


class LibraryError(Exception):
    """The library cannot be given to containers; the message says which file and what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Installed:
    """Where the library and its preload file are on the host."""

    library: Path
    preload_file: Path


def install(source: Path, *, root: Path) -> Installed:
    """Install `source` below `root`; idempotent. Raises LibraryError."""
    try:
        content = source.read_bytes()
    except OSError as error:
        raise LibraryError(f"{source} cannot be read ({error.strerror}): --library must name libgpushare.so") from error
    if not content.startswith(_ELF):
        raise LibraryError(f"{source} is not a shared library: --library must name libgpushare.so")
    name = f"{STEM}{hashlib.sha256(content).hexdigest()[:PREFIX_LENGTH]}.so"
    installed = Installed(root / "lib" / name, root / "ld.so.preload")
    try:
        # The loader goes on without a file that it cannot read: a node that crashes now must not start containers so.
        whole_file.write_if_changed(installed.library, content, mode=LIBRARY_MODE, lasting=True)
        whole_file.write_if_changed(installed.preload_file, f"{contract.CONTAINER_LIBRARY}\n", lasting=True)
        flags = os.statvfs(root).f_flag
    except OSError as error:
        raise LibraryError(
            f"{error.filename or root} cannot be written ({error.strerror}): --root must name a directory of the host"
        ) from error
    if flags & os.ST_NOEXEC:
        # The loader would say so on the program's stderr, and go on without it.
        raise LibraryError(
            f"{root} is mounted noexec, so no program can load a library from it: --root must name a directory of the "
            "host that is not, such as /home/kubernetes/bin/gpushare on Container-Optimized OS"
        )
    return installed
