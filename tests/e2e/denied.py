"""A program for the pods of `test_denial.py`: it opens the driver's device file and prints each time whether it may.

registers   prints it before CUDA starts, whether CUDA starts, and again afterwards, and as another program with the same pid
past        prints it before, and whether CUDA starts, with its own loader that ignores the preload file
stays       starts CUDA, then opens the file again and again and writes the results to SAID
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import time
from pathlib import Path

PRELOAD_FILE, NO_FILE = b"/etc/ld.so.preload", b"/etc/no.so.preload"
LOADERS = [*Path("/lib64").glob("ld-linux*"), *Path("/lib").glob("ld-linux*")]
OWN_LOADER, SAID = Path("/tmp/loader"), "/tmp/said"


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def opens(path: str) -> None:
    """Whether the kernel allows opening the file. ENXIO means allowed: the lab has no driver behind the file."""
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        say({errno.EPERM: "denied", errno.ENXIO: "open"}.get(error.errno or 0, str(error)))
    else:
        say("open")


def starts_cuda() -> None:
    say("cuda" if ctypes.CDLL("libcuda.so.1").cuInit(0) == 0 else "no-cuda")


def become(*arguments: str, loader: Path | None = None) -> None:
    program = [*([str(loader)] if loader else []), os.path.realpath(sys.executable), __file__]
    os.execv(program[0], [*program, *arguments])  # noqa: S606


def main(verb: str, path: str) -> None:
    if verb == "past":
        OWN_LOADER.write_bytes(LOADERS[0].read_bytes().replace(PRELOAD_FILE, NO_FILE))
        OWN_LOADER.chmod(0o755)
        become("first", path, loader=OWN_LOADER)
    if verb == "stays" and os.fork():
        return
    if verb == "stays":
        # The caller waits for all processes that have its descriptors.
        for descriptor, file in enumerate((os.devnull, SAID, os.devnull)):
            os.dup2(os.open(file, os.O_RDWR | os.O_CREAT), descriptor)
    else:
        opens(path)
    if verb != "again":
        starts_cuda()
    if verb == "registers":
        opens(path)
        become("again", path)
    while verb == "stays":
        opens(path)
        time.sleep(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
