"""However long it takes to read a process's mappings, only that process waits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deviceplugin.arbiter import share_ledgers
from deviceplugin.arbiter.share_ledger import ShareLedger
from deviceplugin.arbiter.tenant import Grant, Tenant
from deviceplugin.host import kernel_process
from tests.deviceplugin import arbiter_node, waiting
from tests.deviceplugin.arbiter_node import ArbiterNode

pytestmark = pytest.mark.slow


class Slow:
    """A /proc whose lists of mappings block until `tell` is called."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def has(self, pid: int) -> None:
        self._path(pid).parent.mkdir(parents=True)
        os.mkfifo(self._path(pid))

    def knows(self, name: object) -> None:
        """Make this process's mappings readable at once."""
        self._directory.mkdir(exist_ok=True)
        (self._directory / str(name)).symlink_to(f"/proc/{name}")

    async def tell(self, pid: int, text: bytes) -> None:
        """Provide the mappings once a reader has opened them, so that the writer cannot hang."""
        written: list[int] = []

        def is_read() -> bool:
            with contextlib.suppress(OSError):
                writer = os.open(self._path(pid), os.O_WRONLY | os.O_NONBLOCK)
                written.append(os.write(writer, text))
                os.close(writer)
            return bool(written)

        await waiting.until(is_read)

    def _path(self, pid: int) -> Path:
        return self._directory / str(pid) / "maps"


@pytest.fixture
async def slow(node: ArbiterNode, tmp_path: Path) -> Slow:
    made = Slow(tmp_path / "proc")
    for name in ("self", "sys", str(os.getpid())):
        made.knows(name)
    await node.stop()
    node.proc = tmp_path / "proc"
    await node.start()
    return made


OTHER_PROGRAM = b"55d000000000-55d000001000 r-xp 00000000 08:01 12   /usr/bin/other\n"


async def test_no_process_waits_for_a_check_that_hangs(node: ArbiterNode, slow: Slow) -> None:
    for pod in ("hostile", "trainer", "other"):
        node.add_pod(pod)
    hostile, two, three = [await node.share(pod) for pod in ("hostile", "trainer", "other")]
    slow.has(hostile.pid)
    slow.knows(two.pid)
    slow.knows(three.pid)
    for process in (hostile, two, three):
        await process("hello")
        await process("charge", 0, 100)
    await hostile("close")
    assert await two("reclaim") == 0
    assert await two("turns", 3) == 3
    # Checks of other shares do not wait either.
    await three("become")
    await waiting.until(lambda: node.used("other") is None)
    assert node.used("hostile") == (100,)
    # The process itself waits: only the check shows which program it runs now.
    again = asyncio.create_task(hostile("hello"))
    assert await two("reclaim") == 0
    assert not again.done()
    await slow.tell(hostile.pid, OTHER_PROGRAM)
    assert (await again)["slot"] == 0
    assert node.used("hostile") == (0,)


async def test_the_start_does_not_wait_for_a_check_of_each_process(
    node: ArbiterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add_pod("trainer")
    for _ in range(4):
        await (await node.share())("hello")
    looked = []

    def mapping(*asked: object, **named: object) -> kernel_process.Mapping:
        looked.append(known(*asked, **named))  # type: ignore[arg-type]
        return looked[-1]

    known = kernel_process.mapping
    monkeypatch.setattr(kernel_process, "mapping", mapping)
    await node.stop()
    await node.start()
    (seen,) = looked  # which has the ledger
    assert seen.link is not None
    assert len(node.groups.all()[0].members) == 4
    await waiting.until(lambda: len(looked) == 5)


async def test_the_start_reads_a_bounded_part_of_each_shares_mappings(
    node: ArbiterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add_pod("hostile")
    for _ in range(4):
        process = await node.share("hostile")
        await process("hello")
    read_bytes = []
    known = kernel_process.mapping

    def mapping(pid: int, *_: object, most_bytes: int | None = None, **__: object) -> kernel_process.Mapping:
        seen = known(pid, (0, 0), max_bytes=most_bytes)  # like a process that does not have it mapped
        read_bytes.append(seen.read_bytes)
        return kernel_process.Mapping(known=False, link=None, read_bytes=seen.read_bytes)

    await node.stop()
    monkeypatch.setattr(kernel_process, "MAX_MAPS_BYTES", 8192)
    monkeypatch.setattr(kernel_process, "mapping", mapping)
    await node.start()
    assert sum(read_bytes) <= 8192 + 4 * 4096  # one line each may exceed the bound
    assert len(node.groups.unreachable) == 1


@pytest.fixture
def member() -> kernel_process.KernelProcess:
    identity = kernel_process.with_start(os.getpid())
    assert identity is not None
    return kernel_process.KernelProcess(*identity, os.pidfd_open(os.getpid()))


def group(key: str, *members: kernel_process.KernelProcess) -> ShareLedger:
    made = ShareLedger.make(Tenant(key, "ml", key, ("main",), 0, (Grant(arbiter_node.GPUS[0], 1 << 30, 50, 100),)))
    for slot, process in enumerate(members):
        made.admit(process, slot)
    return made


async def test_a_shares_checks_use_a_twentieth_of_a_cpu_and_are_not_duplicated(
    member: kernel_process.KernelProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    took_seconds, starts, alone = 0.02, list[float](), list[bool]()
    going = threading.Lock()

    def mapping(*_: object, **__: object) -> kernel_process.Mapping:
        starts.append(time.monotonic())
        alone.append(going.acquire(blocking=False))
        while time.thread_time() < took_seconds:
            pass
        if alone[-1]:
            going.release()
        return kernel_process.Mapping(known=True, link=Path("mapped"))

    monkeypatch.setattr(kernel_process, "mapping", mapping)
    gone: list[Callable[[], None]] = []
    ledger = group("a", member)
    looking = share_ledgers.ExecChecker(lambda *_: gone.append(lambda: None))
    for _ in range(3):
        asked = [looking.check(ledger, member) for _ in range(10)]
        assert len(set(map(id, asked))) == 1
        await asyncio.gather(*asked)
    assert len(starts) == 3
    assert all(alone)
    assert starts[-1] - starts[0] >= 2 * took_seconds * (1 + share_ledgers.REST)
    assert not gone
    looking.close()
    ledger.close()


async def test_checks_go_on_after_one_fails(
    node: ArbiterNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The node may have no thread to spare, for example."""
    monkeypatch.setattr(share_ledgers, "FAILED_SECONDS", 0.01)
    node.add_pod("trainer")
    process = await node.share()
    await process("hello")
    (chosen,) = node.groups.all()
    (member,) = chosen.members.values()
    looking = share_ledgers.ExecChecker(lambda *_: None)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with asyncio.timeout(30):
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refuse)
            await looking.check(chosen, member)
        await looking.check(chosen, member)
    looking.close()
    assert caplog.text.count("Could not check a process for exec") == 1
