"""Two real containers on one GPU: each does its part of the work, and the death of one is nothing to the other."""

from __future__ import annotations

import re

import pytest

from kubectl_gpushare.source import live_usage
from lab import gpushare, lab_layout
from tests import builders
from tests.e2e.observation import Observer, eventually
from tests.e2e.test_life_of_a_pod import sleeper

pytestmark = pytest.mark.lab

KERNEL_US = 1000
SETTLING_SECONDS = 1.0
MEASURED_SECONDS = 5.0
TOLERANCE_POINTS = 10.0  # the machine is shared: exact figures are the benchmark's


def share(user: Observer, name: str, request: str, **more: str) -> int:
    """Start a pod on the first GPU; its limit in bytes."""
    user.apply(sleeper(name, request=request, uuid=user.gpunode().gpus[0].uuid, **more))
    user.running(name)
    seen = user.inside(name, "gpushare-probe")
    (total,) = re.findall(r"total (\d+)", seen)
    return int(total)


def work(user: Observer, name: str, seconds: int, *more: str) -> None:
    """Have it run kernels from now on; its pid is in /tmp/pid, what it says in /tmp/work."""
    probe = f"gpushare-probe {' '.join(more)} --duration-us {KERNEL_US} --seconds {seconds}"
    user.inside(name, "sh", "-c", f"{probe} > /tmp/work 2>&1 & echo $! > /tmp/pid")


def told(user: Observer, name: str) -> list[tuple[float, int]]:
    """When, by the machine's clock, how many kernels were done."""
    text = user.inside(name, "cat", "/tmp/work")
    assert "failed" not in text, text
    return [(float(at), int(done)) for done, at in re.findall(r"^done (\d+) at ([\d.]+)$", text, re.MULTILINE)]


def done_by(progress: list[tuple[float, int]], moment: float) -> float:
    """How many were done at a moment, between what was told before and after it."""
    later = next(index for index, (at, _) in enumerate(progress) if at >= moment)
    (from_, before), (to, after) = progress[max(0, later - 1)], progress[later]
    return before + (after - before) * (moment - from_) / max(to - from_, 1e-9)


def works(user: Observer, name: str) -> float:
    """Wait until it has work done that was not done before; when."""
    known = told(user, name)
    last = known[-1][0] if known else 0.0
    return eventually(
        lambda: next((at for at, _ in told(user, name) if at > last), None), seconds=20, what=f"{name} at work"
    )


def test_two_containers_do_work_as_their_requests_are(user: Observer, installed: lab_layout.Layout) -> None:
    requests = {"small": 0.3, "large": 0.7}
    for name, request in requests.items():
        share(user, name, str(request))
    for name in requests:
        work(user, name, 60)
    begin = max(works(user, name) for name in requests) + SETTLING_SECONDS
    end = begin + MEASURED_SECONDS
    for name in requests:
        eventually(lambda name=name: told(user, name)[-1][0] > end, what=f"{name} at work for so long")  # type: ignore[misc]
    done = {name: done_by(told(user, name), end) - done_by(told(user, name), begin) for name in requests}
    total = sum(done.values())
    parts = {name: 100 * count / total for name, count in done.items()}
    assert parts["small"] == pytest.approx(30, abs=TOLERANCE_POINTS), (parts, total)
    text = gpushare.agent_page(user.access, installed.nodes[0])
    node = user.gpunode()
    used = {
        name: live_usage.of({node.name: text}).of_pod(node.name, user.namespace, name, [node.gpus[0].uuid])
        for name in requests
    }
    # Of the time that either had; a GPU that stood idle for a moment, on a busy machine, was used by nobody.
    busy = {name: usage.compute_percent for name, usage in used.items() if usage is not None}
    had = {name: 100 * percent / sum(busy.values()) for name, percent in busy.items()}
    assert had == pytest.approx(parts, abs=1.5 * TOLERANCE_POINTS)
    assert total > 0.5 * MEASURED_SECONDS * 1e6 / KERNEL_US, "the GPU was idle for half of the time"
    user.delete("pods", "--all")
    user.ledger_is_empty()


def test_a_container_that_is_killed_with_memory_and_lease_takes_nothing_from_its_neighbour(user: Observer) -> None:
    victim_bytes = share(user, "victim", "0.9", memory="8Gi")
    neighbour_bytes = share(user, "neighbour", "0.1", memory="4Gi")
    assert (victim_bytes, neighbour_bytes) == (8 * builders.GIB, 4 * builders.GIB)
    work(user, "neighbour", 90, "--allocate", str(neighbour_bytes // 2))
    works(user, "neighbour")
    # It has the lease nine tenths of the time, so at one of these moments at the latest.
    for _ in range(3):
        work(user, "victim", 90, "--allocate", str(victim_bytes))
        works(user, "victim")
        assert f"allocated {victim_bytes}" in user.inside("victim", "cat", "/tmp/work")
        user.inside("victim", "sh", "-c", "kill -9 $(cat /tmp/pid)")
        works(user, "neighbour")
    # Its memory is free for the next of its own, and the neighbour has its other half.
    everything = user.inside("victim", "gpushare-probe", "--fill")
    assert f"filled {victim_bytes}" in everything
    rest = neighbour_bytes - neighbour_bytes // 2
    assert f"allocated {rest}" in user.inside("neighbour", "gpushare-probe", "--allocate", str(rest))

    # And when the pod itself is gone, all of it is there for somebody else.
    work(user, "victim", 90, "--allocate", str(victim_bytes))
    works(user, "victim")
    user.kubectl("delete", "pod", "victim", "--grace-period=0", "--force", "--ignore-not-found")
    card = user.gpunode().gpus[0]
    left = card.memory_bytes - neighbour_bytes
    assert share(user, "heir", "0.9", memory=f"{left >> 20}Mi") == left
    assert f"filled {left}" in user.inside("heir", "gpushare-probe", "--fill")
    works(user, "neighbour")
    user.delete("pods", "--all")
    user.ledger_is_empty()
