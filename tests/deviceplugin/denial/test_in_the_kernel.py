"""Which device files the kernel lets processes of a pod open: real processes, cgroups, device files and program."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from deviceplugin.denial import program
from deviceplugin.denial.kernel import AWAY_SECONDS, RegisteredMap
from tests.deviceplugin.denial.kernel_node import LOOP_CONTROL, MISC, KernelNode

DENIED = "EPERM"


def test_an_unregistered_process_gets_everything_except_the_device(kernel: KernelNode) -> None:
    process = kernel.process()
    assert process.ask("open", kernel.device) == "yes"
    kernel.enforced()
    assert process.ask("open", kernel.device) == DENIED
    assert process.ask("open", "/dev/null") == "yes"


def test_the_path_makes_no_difference(kernel: KernelNode, tmp_path: Path) -> None:
    kernel.enforced()
    process = kernel.process()
    own = tmp_path / "node-of-its-own"
    assert process.ask("node", own, MISC, LOOP_CONTROL) == "made"
    assert process.ask("open", own) == DENIED


def test_a_registered_process_gets_the_device_with_its_threads_but_not_its_children(kernel: KernelNode) -> None:
    known = kernel.enforced()
    process = kernel.process()
    known.add(*process.who)
    assert process.ask("open", kernel.device) == "yes"
    assert process.ask("thread", kernel.device) == "yes"
    assert process.ask("fork", kernel.device) == DENIED
    assert process.ask("open", kernel.device) == "yes"
    known.drop(process.pid)
    assert process.ask("open", kernel.device) == DENIED


def test_a_program_after_exec_is_denied_before_the_arbiter_notices(kernel: KernelNode) -> None:
    known = kernel.enforced()
    process = kernel.process()
    known.add(*process.who)
    assert process.ask("open", kernel.device) == "yes"
    before = process.who
    assert process.ask("become") == "ready"
    assert process.who == before  # /proc shows the same
    assert process.ask("open", kernel.device) == DENIED
    known.add(*process.who)  # it registers itself
    assert process.ask("open", kernel.device) == "yes"


def test_a_later_process_with_the_same_pid_is_denied(kernel: KernelNode) -> None:
    known = kernel.enforced()
    process = kernel.process()
    pid, start_ticks = process.who
    known.add(pid, start_ticks - 1)
    assert process.ask("open", kernel.device) == DENIED


def test_a_process_of_the_node_in_the_pods_cgroup_is_allowed(kernel: KernelNode) -> None:
    kernel.enforced()
    assert kernel.process(contained=False).ask("open", kernel.device) == "yes"


def test_after_a_long_time_without_an_arbiter_every_process_is_allowed(kernel: KernelNode) -> None:
    made = kernel.opened()
    made.attach([kernel.uid])
    process = kernel.process()
    assert process.ask("open", kernel.device) == "yes"  # no arbiter has ever run
    seconds = AWAY_SECONDS
    for ago_seconds, answer in ((seconds - 60, DENIED), (seconds + 1, "yes"), (0, DENIED)):
        of_then = time.monotonic_ns() - round(ago_seconds * 1e9)
        RegisteredMap(made.map_descriptor, clock_ns=lambda then=of_then: then).renew()
        assert process.ask("open", kernel.device) == answer


@pytest.mark.slow
def test_the_next_agent_inherits_the_registered_processes_without_a_gap(kernel: KernelNode) -> None:
    known = kernel.enforced()
    process, stranger = kernel.process(), kernel.process()
    known.add(*process.who)
    assert process.ask("open", kernel.device) == "yes"
    following = kernel.opened(majors=frozenset({MISC, program.DRIVERS_MAJOR}))
    for asked, answer in ((process, "yes"), (stranger, DENIED)):
        assert asked.ask("open", kernel.device) == answer
    RegisteredMap(following.map_descriptor).replace([process.who])
    following.attach([kernel.uid])
    for asked, answer in ((process, "yes"), (stranger, DENIED)):
        assert asked.ask("open", kernel.device) == answer
    assert process.ask("become") == "ready"
    RegisteredMap(following.map_descriptor).replace([process.who])
    assert process.ask("open", kernel.device) == DENIED
