"""A separate wall clock for processes that a test starts; see `clock.c`."""

from __future__ import annotations

import functools
import os
import struct
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


@functools.cache
def _library() -> tuple[tempfile.TemporaryDirectory[str], Path]:
    """Build the library once per process; it is deleted with it."""
    directory = tempfile.TemporaryDirectory(prefix="gpushare-clock-")
    library = Path(directory.name) / "clock.so"
    command = [
        "cc",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        "-o",
        str(library),
        str(HERE / "clock.c"),
    ]
    subprocess.run(command, check=True, timeout=60)
    return directory, library


class Clock:
    """A clock.

    environment: the environment of the processes that use it.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        file.write_bytes(struct.pack("@q", 0))
        self.environment = {"GPUSHARE_TEST_CLOCK": str(file), "LD_PRELOAD": str(_library()[1])}

    def set(self, ahead_seconds: int) -> None:
        """Set the time in one write, so that no reader sees a torn value."""
        handle = os.open(self._file, os.O_WRONLY)
        try:
            os.pwrite(handle, struct.pack("@q", ahead_seconds), 0)
        finally:
            os.close(handle)
