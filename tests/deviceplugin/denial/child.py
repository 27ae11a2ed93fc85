"""A program in a container that opens device files on command, and prints the results.

open PATH        opens it; "yes", or the error
thread PATH      the same in another thread
fork PATH        in a child
become           becomes the same program again (exec), with the same pid
node PATH N M    makes a device file
time PATH COUNT  CPU microseconds of one open and close, out of this many
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import threading
import time


def opened(path: str) -> str:
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "yes"


def in_thread(path: str) -> str:
    answers = []
    thread = threading.Thread(target=lambda: answers.append(opened(path)))
    thread.start()
    thread.join()
    return answers[0]


def in_child(path: str) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, opened(path).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return os.read(reading, 100).decode()


def timed(path: str, count: int) -> str:
    begun = time.process_time()
    for _ in range(count):
        with contextlib.suppress(PermissionError):
            os.close(os.open(path, os.O_RDWR))
    return str((time.process_time() - begun) / count * 1e6)


def do(verb: str, *arguments: str) -> str:
    match verb:
        case "open":
            return opened(arguments[0])
        case "thread":
            return in_thread(arguments[0])
        case "fork":
            return in_child(arguments[0])
        case "time":
            return timed(arguments[0], int(arguments[1]))
        case "node":
            os.mknod(arguments[0], stat.S_IFCHR | 0o666, os.makedev(int(arguments[1]), int(arguments[2])))
            return "made"
        case _:
            return os.execv(sys.executable, sys.orig_argv)  # noqa: S606


def main() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in iter(sys.stdin.readline, ""):
        sys.stdout.write(do(*line.split()) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
