"""With --end-unlimited, processes that bypass their share's limits are killed, and no others."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.audit import auditor, process_limits
from deviceplugin.audit.node_audit import LimitState, NodeAudit, Seen, SeenMember, SeenProcess, SeenShare
from deviceplugin.host import kernel_process
from deviceplugin.host.kernel_process import Container
from gpushare.allocation import Allocation, GivenShare, PodRef
from gpushare.gpunode import Gpu, GpuNode, Mode
from gpushare.refusal import Refusal
from tests.deviceplugin.audit.sample_node import (
    GIVEN,
    GPUS,
    MEMBER,
    NODE,
    OTHER,
    PODS,
    RECORD,
    SIDE,
    TENANT,
    TRAINER,
    A,
    B,
)

UNKNOWN = Container("uid-trainer", "id-new")  # a container that the pod's status does not list yet
HOST = ("Xorg", "gnome-shell", "nv-hostengine", "dcgm-exporter", "nvidia-persiste", "nvidia-smi", "nvidia-cuda-mps")


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait(10)


def judged(pid: int, start_ticks: int, container: Container | None = TRAINER) -> SeenProcess:
    return SeenProcess(A, pid, start_ticks, "python3", 1, container, with_library=False)


def started(pid: int) -> int:
    identity = kernel_process.with_start(pid)
    assert identity is not None
    return identity[1]


def test_kills_the_process_that_was_checked(victim: subprocess.Popen[bytes]) -> None:
    seen_process = judged(victim.pid, started(victim.pid))
    assert auditor.kill(seen_process, identify=lambda _: TRAINER) == ""
    assert victim.wait(10) == -signal.SIGKILL


def test_spares_a_reused_pid(victim: subprocess.Popen[bytes]) -> None:
    for earlier in (1, 1000):
        seen_process = judged(victim.pid, started(victim.pid) - earlier)
        assert auditor.kill(seen_process, identify=lambda _: TRAINER) == ""
    assert victim.poll() is None


@pytest.mark.parametrize("now", [OTHER, SIDE, Refusal("it is in no container of a pod")])
def test_spares_a_process_in_another_container(victim: subprocess.Popen[bytes], now: Any) -> None:
    seen_process = judged(victim.pid, started(victim.pid))
    assert auditor.kill(seen_process, identify=lambda _: now) == "it is in another container now"
    assert victim.poll() is None


def test_spares_a_process_outside_of_containers(victim: subprocess.Popen[bytes]) -> None:
    seen_process = judged(victim.pid, started(victim.pid), container=None)
    assert auditor.kill(seen_process, identify=lambda _: Refusal("")) == "it is in another container now"
    assert victim.poll() is None


def test_spares_a_pid_that_is_reused_during_the_check(
    victim: subprocess.Popen[bytes],
) -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    seen_process = judged(victim.pid, started(victim.pid))

    def identify(_: int) -> Container:
        victim.kill()
        victim.wait(10)  # its pid can be reused now
        return TRAINER

    try:
        assert auditor.kill(seen_process, identify=identify) == ""
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait(10)


def test_reports_the_missing_capability(victim: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(signal, "pidfd_send_signal", denied)
    seen_process = judged(victim.pid, started(victim.pid))
    assert "lacks the capability KILL" in auditor.kill(seen_process, identify=lambda _: TRAINER)


async def test_processes_do_not_wait_for_each_others_mps_daemon(victim: subprocess.Popen[bytes]) -> None:
    victims, together = [judged(victim.pid, started(victim.pid)), judged(os.getpid(), 1)], asyncio.Barrier(2)

    async def terminate(uuid: str, identity: tuple[int, int]) -> None:
        assert (uuid, identity) in {(each.gpu, each.identity) for each in victims}
        await together.wait()

    async with asyncio.timeout(10):
        assert await auditor.kill_all(victims, terminate=terminate, identify=lambda _: TRAINER) == ["", ""]
    assert victim.wait(10) == -signal.SIGKILL


def test_kill_closes_every_pidfd(victim: subprocess.Popen[bytes]) -> None:
    before = pidfds()
    other = os.pidfd_open(victim.pid)
    assert pidfds() == before + 1  # the count works
    os.close(other)
    for start_ticks in (started(victim.pid), 1):
        auditor.kill(judged(victim.pid, start_ticks), identify=lambda _: OTHER)
    auditor.kill(judged(os.getpid() + 2**22, 1), identify=lambda _: OTHER)
    assert pidfds() == before


def pidfds() -> int:
    """Count this process's pidfds; other descriptors may change in other threads."""
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += "pidfd" in str(entry.readlink())
    return count


def processes_to_kill(snapshot: Seen, node: GpuNode | None = NODE) -> list[int]:
    audit = NodeAudit()
    for _ in range(3):
        audit = process_limits.check(snapshot, pods=PODS, node=node, suspects=audit.suspects)
    return [entry.process.pid for entry in process_limits.processes_to_kill(audit)]


def process(pid: int = 9, **changes: Any) -> SeenProcess:
    return dataclasses.replace(judged(pid, pid * 10), **changes)


def seen(*processes: SeenProcess, gpus: tuple[Gpu, ...] = GPUS, members: tuple[SeenMember, ...] = (MEMBER,)) -> Seen:
    return Seen(gpus, processes, (SeenShare(TENANT, (RECORD,), members),))


def test_kills_a_process_that_bypassed_its_limits() -> None:
    assert processes_to_kill(seen(process())) == [9]


@pytest.mark.parametrize("name", HOST)
@pytest.mark.parametrize("container", [None, OTHER, SIDE, Container("uid-of-a-static-pod", "id")])
def test_never_kills_programs_of_the_host_or_of_other_pods(name: str, container: Container | None) -> None:
    assert processes_to_kill(seen(process(name=name, container=container))) == []


@pytest.mark.parametrize("mode", [Mode.EXCLUSIVE, Mode.TIME_SLICING, Mode.MPS, Mode.MIG])
def test_kills_nothing_on_a_gpu_of_another_mode(mode: Mode) -> None:
    gpus = (dataclasses.replace(GPUS[0], mode=mode), GPUS[1])
    assert processes_to_kill(seen(process(), process(10, name="nvidia-cuda-mps"), gpus=gpus)) == []


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"pid": 7, "start_ticks": 70}, id="registered"),
        pytest.param({"gpu": B}, id="on a GPU that is not the share's"),
        pytest.param({"gpu": "GPU-nobody-knows"}, id="on an unknown GPU"),
        pytest.param({"container": UNKNOWN}, id="of a container without a known name"),
        pytest.param({"orphaned": True, "with_library": True}, id="with an orphaned ledger"),
    ],
)
def test_spares_a_process_that_may_be_limited(changes: dict[str, Any]) -> None:
    assert processes_to_kill(seen(process(**changes))) == []


def test_kills_nothing_while_the_ledger_is_unknown() -> None:
    assert processes_to_kill(seen(process()), node=None) == []
    assert processes_to_kill(seen(process()), node=dataclasses.replace(NODE, allocations=())) == []


def test_kills_nothing_that_was_seen_only_once() -> None:
    audit = process_limits.check(seen(process()), pods=PODS, node=NODE)
    assert process_limits.processes_to_kill(audit) == []
    audit = process_limits.check(seen(process(start_ticks=91)), pods=PODS, node=NODE, suspects=audit.suspects)
    assert process_limits.processes_to_kill(audit) == []


containers = st.sampled_from([None, TRAINER, SIDE, OTHER, UNKNOWN, Container("uid-nobody", "id")])
shares = st.sampled_from([("main",), ("side",), ("main", "side")])


@pytest.mark.slow
@given(
    listed=st.lists(
        st.builds(
            SeenProcess,
            gpu=st.sampled_from([A, B, "GPU-gone"]),
            pid=st.integers(6, 9),
            start_ticks=st.sampled_from([60, 70, 80]),
            name=st.sampled_from(["python3", *HOST]),
            used_bytes=st.none() | st.integers(0, 9),
            container=containers,
            with_library=st.none() | st.booleans(),
            orphaned=st.booleans(),
        ),
        max_size=6,
    ),
    modes=st.tuples(st.sampled_from(Mode), st.sampled_from(Mode)),
    given_to=shares,
    members=st.lists(
        st.builds(SeenMember, st.tuples(st.integers(6, 9), st.just(70)), st.just((0,)), st.none()), max_size=2
    ),
    unreachable=st.frozensets(st.tuples(st.integers(6, 9), st.just(80)), max_size=1),
)
def test_kills_only_unregistered_processes_of_known_share_containers(
    listed: list[SeenProcess],
    modes: tuple[Mode, Mode],
    given_to: tuple[str, ...],
    members: list[SeenMember],
    unreachable: frozenset[tuple[int, int]],
) -> None:
    gpus = tuple(dataclasses.replace(gpu, mode=mode) for gpu, mode in zip(GPUS, modes, strict=True))
    share = GivenShare(given_to, GIVEN.gpu_uuids, 50, 80, GIVEN.memory_bytes)
    node = GpuNode("node-a", allocations=(Allocation("of-trainer", PodRef("ml", "trainer", "uid-trainer"), (share,)),))
    snapshot = dataclasses.replace(seen(*listed, gpus=gpus, members=tuple(members)), unreachable=unreachable)
    audit = NodeAudit()
    for _ in range(2):
        audit = process_limits.check(snapshot, pods=PODS, node=node, suspects=audit.suspects)
    with_share = {TRAINER: "main", SIDE: "side"}
    for entry in process_limits.processes_to_kill(audit):
        process = entry.process
        assert process.container is not None
        assert with_share[process.container] in given_to
        assert process.gpu == A
        assert modes[0] is Mode.FRACTIONAL
        assert process.identity not in {member.identity for member in members} | unreachable
        assert entry.state is LimitState.UNLIMITED
        assert not process.orphaned
