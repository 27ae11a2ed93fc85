"""Files that are there whole or not at all, whoever reads them and whenever their writer ends.

They are made under another name and moved into place. A file that is replaced stays what it was for those that have it
open or mapped.
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
    """Put the file there, with the directories above it. Raises OSError.

    lasting: so that it is there, and whole, also after a power cut.
    """
    path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")  # hidden: others read all files of some directories
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
    """Put the file there unless it has this content; return whether it was written. Raises OSError."""
    try:
        if path.read_bytes() == _bytes(content):
            return False
    except FileNotFoundError:
        pass
    write(path, content, mode=mode, lasting=lasting)
    return True


def set_aside(path: Path) -> Path:
    """Keep a file that is invalid here, for people and for whoever wrote it; return where it is.

    A newer agent may have written it, which may come back. The last one that was set aside is replaced.
    """
    aside = path.with_name(f"{path.name}{UNREADABLE}")
    with contextlib.suppress(OSError):
        path.replace(aside)
    return aside


def _sync_directory(directory: Path) -> None:
    """Have the names in it outlive a power cut, which otherwise brings back the file that was replaced."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems cannot do that for directories; the file is there.
        if error.errno not in (errno.EINVAL, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content
