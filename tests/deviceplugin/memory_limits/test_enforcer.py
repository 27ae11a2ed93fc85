"""The driver's memory limits for pods and containers, by simulated drivers and the kernel's cgroups."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from tests.deviceplugin import simulated
from tests.deviceplugin.memory_limits.conftest import CONTEXT, GIB, LimitsNode, Start

pytestmark = pytest.mark.slow

NONE = (1 << 64) - 1
OUT_OF_MEMORY, DONE = "2", "0"


def hard(node: LimitsNode, pod: str = "web") -> tuple[int, int]:
    """Return the hard limits of a pod and of its container."""
    of_pod, of_container = node("limits", pod)
    return of_pod[1], of_container[1]


def learn_contexts(node: LimitsNode, pod: str = "web") -> None:
    """Have the agent measure a context."""
    client = node.client(pod)
    assert client.read() == "ready"
    node.audit(3)
    assert node("context 0") == CONTEXT
    end(client.process)


def end(process: Any) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)


def entry(report: Any, pod: str) -> Any:
    return next(share for share in report["audit"]["shares"] if share["pod"] == pod)


def process(report: Any, pid: int) -> Any:
    (gpu,) = report["audit"]["gpus"]
    return next(known for known in gpu["processes"] if known["pid"] == pid)


def test_a_static_program_is_refused_memory_beyond_its_limit(start: Start) -> None:
    node = start(web=2 * GIB)
    assert node("cover web") == ""
    static = node.client("web", with_library=False)
    assert static.read() == "ready"
    assert static(f"c.allocate({2 * GIB})[0]") == OUT_OF_MEMORY  # its context counts
    assert static(f"c.allocate({2 * GIB - CONTEXT})[0]") == DONE
    assert static("c.allocate(1)[0]") == OUT_OF_MEMORY
    node("round")
    report = node.audit()
    share, seen = entry(report, "web"), process(report, static.pid)
    assert (seen["state"], seen["memoryEnforcement"], share["memoryEnforcement"], share["driverBytes"]) == (
        "memory-limited",
        "driver",
        "driver",
        2 * GIB,
    )
    assert "nothing limits its compute" in seen["reason"]
    (condition,) = report["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "ProcessUnlimited")
    assert "runs without a compute limit on GPU 0" in condition["message"]


def test_before_driver_615_the_library_refuses_it(start: Start) -> None:
    node = start("550.54.15", web=2 * GIB)
    assert (node("probe"), node("cover web")) == ("library", "")
    client, static = node.client("web"), node.client("web", with_library=False)
    assert (client.read(), static.read()) == ("ready", "ready")
    assert static(f"c.allocate({4 * GIB})[0]") == DONE
    report = node.audit()
    assert (process(report, client.pid)["state"], process(report, client.pid)["memoryEnforcement"]) == (
        "limited",
        "library",
    )
    assert (process(report, static.pid)["state"], process(report, static.pid)["memoryEnforcement"]) == (
        "unlimited",
        "none",
    )
    assert (entry(report, "web")["memoryEnforcement"], entry(report, "web")["driverBytes"]) == ("none", None)


def test_a_process_is_welcome_once_its_containers_limit_reads_back(start: Start) -> None:
    node = start(web=2 * GIB)
    assert hard(node) == (NONE, NONE)
    client = node.client("web")
    assert client.read() == "ready"
    assert hard(node) == (2 * GIB, 2 * GIB)
    report = node.audit()
    assert (process(report, client.pid)["memoryEnforcement"], entry(report, "web")["memoryEnforcement"]) == (
        "driver",
        "driver",
    )
    assert entry(report, "web")["inForce"]
    assert client("c.info()[1]") == str(2 * GIB)


@pytest.mark.parametrize(
    ("failure", "reason"), [("lost", "GPU is lost"), ("hung", "the driver has not answered for 1 s")]
)
def test_a_process_whose_limit_cannot_be_set_is_refused(start: Start, failure: str, reason: str) -> None:
    node = start(web=2 * GIB)
    node("hurry")
    simulated.command("fail", node.box.gpus, "0", failure)
    client = node.client("web")
    # The library asks the arbiter before it calls the driver.
    assert client.process.stderr is not None
    line = client.process.stderr.readline()
    assert "the driver's memory limit is not in force" in line
    assert reason in line


def test_the_library_refuses_before_the_driver_once_contexts_are_known(start: Start) -> None:
    node = start(web=2 * GIB)
    learn_contexts(node)
    clients = [node.client("web") for _ in range(3)]
    assert [client.read() for client in clients] == ["ready"] * 3
    assert hard(node) == (2 * GIB + CONTEXT, 2 * GIB + CONTEXT)
    assert clients[0](f"c.allocate({2 * GIB - 3 * CONTEXT + 1})[0]") == OUT_OF_MEMORY
    assert clients[0](f"c.allocate({2 * GIB - 3 * CONTEXT})[0]") == DONE
    assert node("limits web")[1][2] == 2 * GIB  # and the driver has a context's size left


def test_limits_stay_with_the_next_agent(start: Start) -> None:
    node = start(web=2 * GIB)
    static = node.client("web", with_library=False)
    assert static.read() == "ready"
    assert node("cover web") == ""
    end(node.agent.process)
    assert static(f"c.allocate({2 * GIB})[0]") == OUT_OF_MEMORY
    successor = start(web=2 * GIB)
    assert hard(successor) == (2 * GIB, NONE)
    successor("round")
    assert hard(successor) == (2 * GIB, 2 * GIB)
    report = successor.audit()
    assert process(report, static.pid)["state"] == "memory-limited"


def test_limits_of_an_ended_share_are_cleared_once_nothing_runs(start: Start) -> None:
    node = start(web=2 * GIB)
    static = node.client("web", with_library=False)
    assert static.read() == "ready"
    node("round")
    node("end web")
    node("round")
    assert hard(node) == (2 * GIB, 2 * GIB)  # a pod that was deleted by force still runs
    end(static.process)
    node("round")
    assert hard(node) == (NONE, NONE)


def test_a_round_repairs_limits_and_clears_soft_ones(start: Start) -> None:
    node = start(web=2 * GIB)
    node("round")
    for limits in ((8 * GIB, 0), (2 * GIB, GIB), (NONE, 0), (GIB, 0)):
        node("set", "web", *limits)
        node("round")
        assert node("limits web")[1][:2] == [0, 2 * GIB]


def test_a_resize_is_one_call_for_the_program(start: Start) -> None:
    node = start(web=2 * GIB)
    client = node.client("web")
    assert client.read() == "ready"
    node.audit(3)
    assert client(f"c.allocate({2 * GIB})[0]") == OUT_OF_MEMORY
    assert node("resize", "web", 4 * GIB) == []
    assert hard(node) == (4 * GIB + CONTEXT, 4 * GIB + CONTEXT)
    assert client(f"c.allocate({3 * GIB})[0]") == DONE
    assert node("resize", "web", 2 * GIB)[0][2] == 4 * GIB  # the library's limit waits for its memory
    assert hard(node) == (4 * GIB + CONTEXT, 4 * GIB + CONTEXT)
    assert client("c.info()[1]") == str(4 * GIB)


def test_the_driver_follows_what_is_lent(start: Start) -> None:
    node = start(web=2 * GIB)
    learn_contexts(node)
    node("burst", "web", 6 * GIB)
    client = node.client("web")
    assert client.read() == "ready"
    assert client(f"c.allocate({5 * GIB - CONTEXT})[0]") == DONE
    assert hard(node) == (5 * GIB + CONTEXT, 5 * GIB + CONTEXT)
    static = node.client("web", with_library=False)  # its context takes the rest
    assert static.read() == "ready"
    assert static("c.allocate(1)[0]") == OUT_OF_MEMORY
    end(static.process)
    assert client(f"c.allocate({GIB + 1})[0]") == OUT_OF_MEMORY  # more than its limit
    end(client.process)
    deadline = time.monotonic() + 30
    while hard(node) != (2 * GIB + CONTEXT, 2 * GIB + CONTEXT):
        assert time.monotonic() < deadline, f"the limits stay at {hard(node)}"
        node("round")


def test_memory_of_a_static_program_is_not_given_away(start: Start) -> None:
    node = start(web=4 * GIB)
    assert node("cover web") == ""
    static = node.client("web", with_library=False)
    assert static.read() == "ready"
    assert static(f"c.allocate({3 * GIB})[0]") == DONE
    node.audit(3)
    ((_, _, memory_bytes, used_bytes),) = node("resize", "web", 2 * GIB)
    assert (memory_bytes, used_bytes) == (4 * GIB, 3 * GIB + CONTEXT)
    assert static("c.allocate(1)[0]") == OUT_OF_MEMORY  # but it gets no more
    os.kill(static.pid, signal.SIGKILL)
    static.process.wait(30)
    ((_, _, memory_bytes, used_bytes),) = node("resize", "web", 2 * GIB)
    assert (memory_bytes, used_bytes) == (2 * GIB, 0)


@pytest.mark.parametrize("memory_bytes", [GIB, 4 * GIB])
def test_a_round_does_not_overwrite_a_newer_limit(start: Start, memory_bytes: int) -> None:
    node = start(web=2 * GIB)
    node("round")
    node("overtake", "web", memory_bytes)
    assert hard(node) == (memory_bytes, memory_bytes)


def test_a_round_does_not_clear_the_limit_of_a_starting_pod(start: Start) -> None:
    node = start(web=2 * GIB)
    assert node("start web") == ""
    assert hard(node)[0] == 2 * GIB


def test_a_pod_starts_before_the_informers_have_it(start: Start) -> None:
    node = start(web=2 * GIB)
    node("late")
    assert node("cover web") == ""
    node("round")
    assert hard(node) == (2 * GIB, 2 * GIB)


@pytest.mark.parametrize("confusion", ["forget", "copy web"])
def test_memory_is_held_back_unless_its_pod_is_known(start: Start, confusion: str) -> None:
    node = start(web=4 * GIB)
    assert node("cover web") == ""
    static = node.client("web", with_library=False)
    assert static.read() == "ready"
    assert static(f"c.allocate({3 * GIB})[0]") == DONE
    node(confusion)
    ((_, _, memory_bytes, _),) = node("resize", "web", 2 * GIB)
    assert memory_bytes == 4 * GIB


def test_a_limit_that_read_back_counts_while_another_call_is_slow(start: Start) -> None:
    node = start(web=2 * GIB)
    node("round")
    node("hurry")
    node("stall")
    client = node.client("web")
    assert client.read() == "ready"
