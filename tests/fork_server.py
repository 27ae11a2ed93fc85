"""Forks processes that have imported a program's packages already: `python -m tests.fork_server SOCKET MODULE...`.

Such a process differs from one that was executed only in what it need not import, which takes half a second of a core.
The packages start no threads when they are imported. The processes end with the server, and it ends with its client.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1
CLONE_NEWNS, MS_BIND, MS_PRIVATE_AND_BELOW = 0x20000, 0x1000, 0x44000


def serve(client: socket.socket) -> tuple[dict[str, Any], int]:
    """Fork a process per request, and tell its client of its end; returns in each process that was forked."""
    server = os.getpid()
    running: dict[int, tuple[int, int]] = {}  # by pidfd: pid, where to write the exit code
    events = select.poll()
    events.register(client, select.POLLIN)
    while True:
        for descriptor, _ in events.poll():
            if descriptor in running:
                events.unregister(descriptor)
                pid, ended = running.pop(descriptor)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(BrokenPipeError):
                    os.write(ended, str(code).encode())
                os.close(ended)
                os.close(descriptor)
                continue
            message, (*descriptors,), _, _ = socket.recv_fds(client, 1 << 20, 2)
            if not message:
                sys.exit()
            pid = os.fork()
            if pid == 0:
                LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != server:
                    os._exit(1)
                return json.loads(message), descriptors[0]
            handle = os.pidfd_open(pid)
            running[handle] = pid, descriptors[1]
            events.register(handle, select.POLLIN)
            os.close(descriptors[0])
            client.send(str(pid).encode())


def become(request: dict[str, Any], errors: int) -> None:
    """Run the requested program."""
    os.dup2(errors, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    if request["mounted"] is not None:
        mount(*request["mounted"])
    kind, program, *arguments = request["words"]
    sys.argv[:] = [kind, *arguments]
    if kind == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - as `python -c` does


def mount(at: str, directory: str) -> None:
    """Mount a directory in a new /var/run, which only this process sees."""
    expect_success(LIBC.unshare(CLONE_NEWNS))
    expect_success(LIBC.mount(None, b"/", None, MS_PRIVATE_AND_BELOW, None))
    expect_success(LIBC.mount(b"none", b"/var/run", b"tmpfs", 0, None))
    Path(at).mkdir(parents=True)
    expect_success(LIBC.mount(directory.encode(), at.encode(), None, MS_BIND, None))


def expect_success(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    become(*serve(socket.socket(fileno=int(sys.argv[1]))))
