"""Attacks that a program in a share container may try, by name. Each runs in a separate process until its time is over.

Usage: attacks.py NAME[,NAME...] SECONDS. An attack prints "at it" once it has begun. At its end it prints, as JSON, the
forbidden things that succeeded (`won`) and the number of attempts.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import dataclasses
import json
import mmap
import os
import random
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gpushare import contract
from tests.deviceplugin.arbiter import attacker
from tests.deviceplugin.arbiter.attacker import lease, message
from tests.deviceplugin.share_process import PR_SET_NAME, Share
from tests.hostile.cuda import CudaError, Gpu

SOCKET = f"{contract.CONTAINER_ARBITER_DIRECTORY}/{contract.ARBITER_SOCKET_NAME}"
SCRATCH = Path("/scratch")
MAPPED_FILES = 40_000
LONG = "/".join(["x" * 249] * 4)
CHILDREN = 64
BESIDE = "GPUSHARE_BESIDE"  # set in a process that bypassed the library
CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWCGROUP, MS_BIND = 0x10000000, 0x00020000, 0x02000000, 0x1000
LIBC = ctypes.CDLL(None, use_errno=True)
won = list[str]()
INFINITE = 2**64 - 1


def honest() -> Iterator[None]:
    """Use the GPU as much as possible through the library; not an attack."""
    gpu = Gpu()
    kernel = gpu.kernel(1000)
    while True:
        gpu.launch(kernel, 5)
        gpu.wait()
        yield


def long() -> Iterator[None]:
    """Use all its memory, and kernels of twenty milliseconds, three at a time; not an attack."""
    gpu = Gpu()
    gpu.fill()
    kernel = gpu.kernel(20_000)
    while True:
        gpu.launch(kernel, 3)
        gpu.wait()
        yield


def names() -> Iterator[None]:
    """Join and leave with a process name and mapped files that are not text."""
    SCRATCH.joinpath("names").mkdir(exist_ok=True)
    share = Share(SOCKET)
    share.disguise(str(SCRATCH / "names"))
    while True:
        with contextlib.suppress(OSError, KeyError):
            share.hello()
            share.connected().close()
        share.socket = None
        time.sleep(0.01)
        yield


def files() -> Iterator[None]:
    """Join and leave with forty thousand mapped files that have long names."""
    directory = SCRATCH / str(os.getpid()) / LONG
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory / "f", os.O_RDWR | os.O_CREAT)
    os.ftruncate(descriptor, 2 * mmap.PAGESIZE)
    page, private = ctypes.c_size_t(mmap.PAGESIZE), mmap.MAP_PRIVATE
    for number in range(MAPPED_FILES):
        offset = number % 2 * mmap.PAGESIZE  # otherwise the kernel would merge the mappings
        LIBC.mmap(None, page, mmap.PROT_READ, private, descriptor, ctypes.c_long(offset))
    ways = attacker.Attacker(SOCKET)
    while True:
        ways.welcomed().close()
        yield


def _joined() -> Share:
    """Join, and return the slot as soon as the container has a free one."""
    share = Share(SOCKET)
    while True:
        with contextlib.suppress(OSError):
            if "slot" in share.hello():
                return share
        share.connected().close()
        share.socket = None
        time.sleep(0.05)


def slots() -> Iterator[None]:
    """Write the 64-bit maximum and other values to all slots of its container's ledger."""
    share, dice = _joined(), random.Random(5)
    while True:
        for place in range(len(share.words)):
            share.words[place] = dice.choice([INFINITE, 1 << 63, dice.randrange(1 << 64)])
        with contextlib.suppress(OSError):
            share.reclaim()
        yield


def pages() -> Iterator[None]:
    """Try every way to write to the pages with its limits, and to change their sizes."""
    share = _joined()
    while True:
        won.extend(share.tamper())
        time.sleep(0.01)
        yield


def mounts() -> Iterator[None]:
    """Write, remove, rename and mount over the preload file, the library and the socket, here and in new namespaces."""
    while True:
        for path in (contract.CONTAINER_PRELOAD_FILE, contract.CONTAINER_LIBRARY, SOCKET):
            for name, attempt in (
                ("written", lambda path=path: os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))),
                ("removed", lambda path=path: Path(path).unlink()),
                ("renamed", lambda path=path: Path(path).rename(f"{path}.old")),
                ("replaced", lambda path=path: _replace(path)),
                ("mounted over", lambda path=path: _mount(path)),
            ):
                with contextlib.suppress(OSError):
                    attempt()
                    won.append(f"{path} {name}")
        if not os.fork():
            LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNS)
            with contextlib.suppress(OSError):
                _mount(contract.CONTAINER_PRELOAD_FILE)  # allowed in a new namespace; the audit then reports it
            os._exit(0)
        os.wait()
        time.sleep(0.01)
        yield


def _replace(path: str) -> None:
    other = Path(path).with_name("other")
    other.write_bytes(b"")
    other.rename(path)


def _mount(path: str) -> None:
    if LIBC.mount(b"/dev/null", path.encode(), None, MS_BIND, None):
        raise OSError(ctypes.get_errno(), "mount")


def spins() -> Iterator[None]:
    """Keep a processor busy."""
    while True:
        sum(range(10_000))
        yield


def execs() -> Iterator[None]:
    """Run processes, one after the other, that join and then exec another program."""
    while True:
        children = [_child(_joins_and_becomes) for _ in range(4)]
        for child in children:
            os.waitpid(child, 0)
        yield


def _joins_and_becomes() -> None:
    attacker.Attacker(SOCKET).welcomed()
    os.execv(sys.executable, [sys.executable, "-S", "-E", "-c", "pass"])  # noqa: S606


def forks() -> Iterator[None]:
    """Fork dozens of children that join; kill them and fork more."""
    while True:
        children = [_child(_joins_and_waits) for _ in range(CHILDREN)]
        time.sleep(0.2)
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        yield


def _joins_and_waits() -> None:
    attacker.Attacker(SOCKET).welcomed()
    signal.pause()


def killed() -> Iterator[None]:
    """Start processes that take all its memory and the GPU through the library, and kill them while they hold both."""
    dice = random.Random(6)
    while True:
        child = _child(_takes_all)
        time.sleep(dice.uniform(0.05, 0.4))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        yield


def _takes_all() -> None:
    with contextlib.suppress(CudaError):
        collections.deque(long(), maxlen=0)


def _child(what: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        with contextlib.suppress(OSError):
            what()
        os._exit(0)
    return child


def turns() -> Iterator[None]:
    """Bypass the library: a registered process reports that it yielded while its kernels run."""
    made = attacker.Attacker(SOCKET).welcomed()
    made.send(lease(contract.MESSAGE_WANT))
    gpu = Gpu()
    kernel = gpu.kernel(1000)
    while True:
        with contextlib.suppress(BlockingIOError):
            while data := made.recv(contract.WIRE_MAX):
                number = struct.unpack_from(contract.WIRE_LEASE, data, attacker.HEADER)[2]
                made.send(lease(contract.MESSAGE_CLOSED, number))
                made.send(lease(contract.MESSAGE_RELEASED, number))
        gpu.launch(kernel, 5)
        gpu.wait()
        yield


def beside() -> Iterator[None]:
    """Bypass the library: an unregistered process with memory and kernels."""
    gpu = Gpu()
    gpu.take(gpu.total_bytes() // 16)
    kernel = gpu.kernel(1000)
    while True:
        gpu.launch(kernel, 5)
        gpu.wait()
        yield


def daemon() -> Iterator[None]:
    """Do the same under the name of an MPS daemon."""
    LIBC.prctl(PR_SET_NAME, b"nvidia-cuda-mps")
    yield from beside()


def hides() -> Iterator[None]:
    """Do the same in a child cgroup named like another pod's; root in a namespace may create one."""
    with contextlib.suppress(OSError):
        into_a_cgroup("x\v0::", "pod22222222-2222-2222-2222-222222222222", "b" * 64)
    yield from daemon()


def into_a_cgroup(*names: str) -> None:
    user, root = os.geteuid(), SCRATCH / "cgroup"
    if LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWCGROUP):
        raise OSError(ctypes.get_errno(), "unshare")
    for file, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {os.getegid()} 1")):
        Path("/proc/self", file).write_text(text)
    root.mkdir(exist_ok=True)
    if LIBC.mount(b"none", os.fsencode(root), b"cgroup2", 0, None):
        raise OSError(ctypes.get_errno(), "mount")
    own = root.joinpath(*names)
    own.mkdir(parents=True, exist_ok=True)
    (own / "cgroup.procs").write_text("0")


def versions() -> Iterator[None]:
    """Send messages with unknown versions and invalid sizes among valid ones."""
    ways = attacker.Attacker(SOCKET)
    others = ways.versions()
    while True:
        next(others)
        with ways.connect() as made, contextlib.suppress(OSError):
            made.send(message(contract.MESSAGE_HELLO, bytes(4096)))
        yield


@dataclasses.dataclass(frozen=True)
class Attack:
    """An attack.

    told: the audit's report on such a process in the end, if there is one. past: it bypasses the library.
    """

    run: Callable[[], Iterator[None]]
    told: str = ""
    past: bool = False
    processes: int = 2

    @property
    def what(self) -> str:
        """Return a description of it."""
        return " ".join((self.run.__doc__ or "").split())


def _way(name: str) -> Callable[[], Iterator[None]]:
    def run() -> Iterator[None]:
        yield from getattr(attacker.Attacker(SOCKET), name)()

    run.__doc__ = getattr(attacker.Attacker, name).__doc__
    return run


_WAYS = ("garbage", "hellos", "connections", "leases", "deaf", "keeps", "descriptors")
ATTACKS = {
    "names": Attack(names),
    "files": Attack(files),
    **{name: Attack(_way(name)) for name in _WAYS},
    "versions": Attack(versions),
    "slots": Attack(slots),
    "pages": Attack(pages, processes=1),
    "mounts": Attack(mounts, processes=1),
    "execs": Attack(execs),
    "forks": Attack(forks),
    "killed": Attack(killed),
    "turns": Attack(turns, told="beyond", past=True),
    "beside": Attack(beside, told="unlimited", past=True),
    "daemon": Attack(daemon, told="unlimited", past=True),
    "hides": Attack(hides, told="unlimited", past=True),
}
BASELINES = {
    "honest": Attack(honest, processes=1),
    "long": Attack(long, processes=1),
    "spins": Attack(spins),
}


def bypass_library() -> None:
    """Exec this program again with our own loader, which ignores the preload file."""
    if os.environ.get(BESIDE):
        return
    loader = SCRATCH / f"ld.so.{os.getpid()}"
    text = Path("/lib64/ld-linux-x86-64.so.2").read_bytes()
    loader.write_bytes(text.replace(contract.CONTAINER_PRELOAD_FILE.encode(), b"/etc/no.so.preload"))
    loader.chmod(0o755)
    program = [str(loader), str(Path(sys.executable).resolve())]
    os.execve(loader, [*program, *sys.orig_argv[1:]], {**os.environ, BESIDE: "1"})  # noqa: S606


def main() -> None:
    names, seconds = sys.argv[1].split(","), float(sys.argv[2])
    if len(names) == 1:
        attempt(names[0], seconds)
        return
    children = []
    for name in names:
        children.append(os.fork())
        if not children[-1]:
            attempt(name, seconds)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)  # on SIGTERM the attack ends; then this process does too
    for child in children:
        os.waitpid(child, 0)


def attempt(name: str, seconds: float) -> None:
    attack = {**BASELINES, **ATTACKS}[name]
    if attack.past:
        bypass_library()

    def end(*_: object) -> None:
        raise SystemExit

    with contextlib.suppress(PermissionError):  # it already leads a session
        os.setpgid(0, 0)
    signal.signal(signal.SIGALRM, end)
    going, rounds, own, failed = attack.run(), 0, os.getpid(), ""
    try:
        next(going)
        sys.stdout.write("at it\n")
        sys.stdout.flush()
        signal.setitimer(signal.ITIMER_REAL, seconds)
        for _ in going:
            rounds += 1
    except Exception as error:
        failed = repr(error)
        raise
    finally:
        if os.getpid() != own:
            os._exit(0)  # a process it just forked received the signal too
        sys.stdout.write(json.dumps({"won": sorted(set(won)), "rounds": rounds, "failed": failed}) + "\n")
        sys.stdout.flush()
        os.killpg(0, signal.SIGKILL)  # also its children


if __name__ == "__main__":
    main()
