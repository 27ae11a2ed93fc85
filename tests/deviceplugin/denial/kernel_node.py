"""A hierarchy of cgroup v2 with a pod, a bpf file system, and processes that open device files there.

The devices are /dev/loop-control and others of major number 10, in place of the driver's: opening them has no effect.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from deviceplugin.denial import kernel, pod_denial

MISC, LOOP_CONTROL = 10, 237
CONTAINER = "5d" * 32
HIERARCHIES = [Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")]


class Process:
    """A process in a cgroup, which runs `child.py`; `contained`: in its own pid namespace."""

    def __init__(self, cgroup: Path, *, contained: bool) -> None:
        unshare = "unshare --pid --fork --kill-child" if contained else ""
        enter = f'echo $$ > "$1/cgroup.procs" && shift && exec {unshare} "$@"'
        child = [sys.executable, "-S", str(Path(__file__).with_name("child.py"))]
        self._started = subprocess.Popen(
            ["/bin/sh", "-c", enter, "sh", str(cgroup), *child],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # unshare complains when it is ended with its child
            text=True,
            bufsize=1,
        )
        assert self.answer() == "ready"
        started = self._started.pid
        children = Path(f"/proc/{started}/task/{started}/children").read_text().split()
        self.pid = int(children[0]) if contained else started

    @property
    def who(self) -> tuple[int, int]:
        return self.pid, int(Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[19])

    def ask(self, *words: object) -> str:
        self.tell(*words)
        return self.answer()

    def tell(self, *words: object) -> None:
        assert self._started.stdin
        self._started.stdin.write(" ".join(map(str, words)) + "\n")
        self._started.stdin.flush()

    def answer(self) -> str:
        assert self._started.stdout
        return self._started.stdout.readline().strip()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._started.communicate(timeout=10)


class KernelNode:
    """A node with one pod, whose UID is `uid`. An agent would get `bpf` and `cgroups`."""

    def __init__(self, directory: Path, hierarchy: Path, stack: contextlib.ExitStack) -> None:
        self.bpf = directory / "bpf"
        self.cgroups = hierarchy / f"gpushare-test-{uuid.uuid4().hex}"
        self.uid = str(uuid.uuid4())
        self.container = self.cgroups / "kubepods" / "burstable" / f"pod{self.uid}" / CONTAINER
        self.beside = self.cgroups / "kubepods" / f"pod{uuid.uuid4()}" / CONTAINER
        self.device = directory / "nvidiactl"
        self._stack = stack
        self.bpf.mkdir()
        _checked(ctypes.CDLL(None, use_errno=True).mount(b"bpf", bytes(self.bpf), b"bpf", 0, None))
        stack.callback(lambda: subprocess.run(["umount", self.bpf], check=True))
        self.container.mkdir(parents=True)
        self.beside.mkdir(parents=True)
        stack.callback(self._remove)
        os.mknod(self.device, 0o20666, os.makedev(MISC, LOOP_CONTROL))

    def process(self, *, contained: bool = True, covered: bool = True) -> Process:
        """Start a process in the pod's container, in the pod next to it, or of the node itself, like a runtime's
        hook.
        """
        made = Process(self.container if covered else self.beside, contained=contained)
        self._stack.callback(made.end)
        return made

    def opened(self, majors: frozenset[int] = frozenset({MISC})) -> pod_denial.DenialProgram:
        """Load the program as a starting agent does."""
        made = pod_denial.load_program(self.bpf, self.cgroups, proc=Path("/proc"), majors=majors)
        self._stack.callback(made.close)
        return made

    def enforced(self) -> kernel.RegisteredMap:
        """Attach the program to the pod, with an arbiter running, and return the map."""
        made = self.opened()
        known = kernel.RegisteredMap(made.map_descriptor)
        known.renew()
        assert made.attach([self.uid]) == {self.uid}
        return known

    def _remove(self) -> None:
        for path in sorted(self.cgroups.rglob("*"), reverse=True):
            if path.is_dir():
                path.rmdir()
        self.cgroups.rmdir()


def hierarchy() -> Path:
    """Return where cgroup v2 is mounted; skips the test without it, or if the kernel does not allow loading a
    program.
    """
    if os.geteuid() != 0:
        pytest.skip("needs root, to make cgroups and load programs into the kernel")
    root = next((hierarchy for hierarchy in HIERARCHIES if (hierarchy / "cgroup.controllers").exists()), None)
    if root is None:
        pytest.skip("no hierarchy of cgroup v2 is mounted here")
    try:
        os.close(kernel.make_registered_map())
        probe = root / f"gpushare-test-{uuid.uuid4().hex}"
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        pytest.skip(f"the kernel lets us make no map for programs, or no cgroup: {error.strerror}")
    return root


@contextlib.contextmanager
def opened(directory: Path) -> Iterator[KernelNode]:
    root = hierarchy()
    with contextlib.ExitStack() as stack:
        yield KernelNode(directory, root, stack)


def _checked(answer: int) -> None:
    if answer != 0:
        pytest.skip(f"no bpf file system can be mounted here: {os.strerror(ctypes.get_errno())}")
