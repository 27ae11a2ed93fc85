"""Atomic file writes: readers see the old or the new file, even if the writer dies.

A file is written under a temporary name and renamed. Processes that have the old file open or mapped keep it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Final

MODE: Final = 0o644
DIRECTORY_MODE: Final = 0o755
UNREADABLE: Final = ".unreadable"


def write(path: Path, content: str | bytes, *, mode: int = MODE, lasting: bool = False) -> None:
    """Write a file, and create its parent directories. Raises OSError.

    lasting: sync to disk, so that the complete file survives a power failure.
    """
    path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    # a dotfile, because other programs read all files of some directories
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with fresh.open("wb") as file:
        file.write(_bytes(content))
        os.fchmod(file.fileno(), mode)
        if lasting:
            file.flush()
            os.fsync(file.fileno())
    fresh.replace(path)
    if lasting:
        _sync_directory(path.parent)


def write_if_changed(path: Path, content: str | bytes, *, mode: int = MODE, lasting: bool = False) -> bool:
    """Write a file unless it already has this content; return whether it was written. Raises OSError."""
    try:
        if path.read_bytes() == _bytes(content):
            return False
    except FileNotFoundError:
        pass
    write(path, content, mode=mode, lasting=lasting)
    return True


def set_aside(path: Path) -> Path:
    """Rename an invalid file so that it can be inspected; return the new path.

    A newer agent that wrote the file may come back. An earlier file that was set aside is replaced.
    """
    aside = path.with_name(f"{path.name}{UNREADABLE}")
    with contextlib.suppress(OSError):
        path.replace(aside)
    return aside


def _sync_directory(directory: Path) -> None:
    """Sync a directory, so that a power failure does not restore the replaced file."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems cannot sync directories; the file itself is written.
        if error.errno not in (errno.EINVAL, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content
