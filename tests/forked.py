"""Processes of the Python programs, forked by a server that has imported their packages, or else executed."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests import programs, unshared

# Variables that have an effect only when a process is executed begin with these.
AT_START = ("LD_", "MALLOC_", "OPENBLAS_", "PYTHON", "SSL_CERT_")
ITS_OWN = {
    **programs.NO_CERTIFICATES,
    "LD_LIBRARY_PATH": str(Path(programs.PATH) / "build" / "simgpu"),  # has NVML
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONPATH": programs.PATH,
}
MODULES = {
    "webhook": (
        "webhook.cluster_process",
        "webhook.memory_cluster",
        "cryptography.hazmat.backends.openssl.backend",
    ),
    "deviceplugin": ("deviceplugin.agent", "deviceplugin.agent_settings", "kubernetes_asyncio.config"),
}
MOUNTED = 'mount -t tmpfs none /var/run; mkdir -p "$1"; mount --bind "$2" "$1"; shift 2; exec "$@"'


class Process:
    """A forked process, used like a `subprocess.Popen`."""

    def __init__(self, pid: int, ended: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = os.fdopen(ended, "rb", buffering=0)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            events = select.poll()
            events.register(self._ended, select.POLLIN)
            if not events.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            with self._ended:
                # Without a code its server has ended, and killed it.
                self.returncode = int(self._ended.read(16) or -signal.SIGKILL)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Server:
    """A server that forks processes of one package."""

    def __init__(self, package: str) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fork_server", str(theirs.fileno()), *MODULES.get(package, (package,))],
                cwd=programs.PATH,
                env={name: value for name, value in os.environ.items() if name != "KUBECONFIG"} | ITS_OWN,
                pass_fds=[theirs.fileno()],
            )

    def start(self, request: Mapping[str, object], errors: int) -> Process:
        reading, writing = os.pipe()
        socket.send_fds(self._socket, [json.dumps(request).encode()], [errors, writing])
        os.close(writing)
        return Process(int(self._socket.recv(16)), reading)

    def end(self) -> None:
        self._socket.close()
        self._process.wait(30)


_servers: dict[str, Server] | None = None  # None: every process is executed


@contextlib.contextmanager
def allowed() -> Iterator[None]:
    """Let `start` fork: not in benchmarks, where a process would share memory with its server."""
    global _servers
    _servers = {}
    try:
        yield
    finally:
        for server in _servers.values():
            server.end()
        _servers = None


def start(
    package: str,
    words: Sequence[str],
    *,
    environment: Mapping[str, str],
    errors: int,
    mounted: tuple[Path, Path] | None = None,
) -> Process | subprocess.Popen[bytes]:
    """Start `python WORDS` with modules of a package. errors: the descriptor of its stderr.

    mounted: a path in /var/run, which is empty otherwise, and the directory that only this process sees there.

    A process is executed if its interpreter needs options, or variables that have an effect only at its start. The
    tests of other releases, of wrong clocks and of images do that for all programs.
    """
    at_start = [item for item in environment.items() if item[0].startswith(AT_START)]
    if (
        _servers is None
        or words[0] not in {"-m", "-c"}
        or any(value not in {ITS_OWN.get(name), os.environ.get(name)} for name, value in at_start)
        or (mounted is not None and os.geteuid() != 0)
    ):
        command = [sys.executable, *words]
        if mounted is not None:
            command = [*unshared.MOUNTS, "sh", "-e", "-c", MOUNTED, "sh", *map(str, mounted), *command]
        return subprocess.Popen(command, cwd=programs.PATH, env=environment, stderr=errors)
    if package not in _servers:
        _servers[package] = Server(package)
    request = {
        "words": words,
        "environment": dict(environment),
        "directory": programs.PATH,
        "mounted": None if mounted is None else [str(path) for path in mounted],
    }
    return _servers[package].start(request, errors)
