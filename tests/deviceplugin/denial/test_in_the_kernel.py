"""What the kernel lets processes of a pod open: real processes, cgroups and device files, the real program."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from deviceplugin.denial import denial_program, registered
from tests.deviceplugin.denial.kernel_node import LOOP_CONTROL, MISC, KernelNode

DENIED = "EPERM"


def test_whoever_is_not_registered_gets_no_device_and_all_else(kernel: KernelNode) -> None:
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


def test_who_registers_gets_it_with_all_threads_and_no_child(kernel: KernelNode) -> None:
    known = kernel.enforced()
    process = kernel.process()
    known.add(*process.who)
    assert process.ask("open", kernel.device) == "yes"
    assert process.ask("thread", kernel.device) == "yes"
    assert process.ask("fork", kernel.device) == DENIED
    assert process.ask("open", kernel.device) == "yes"
    known.drop(process.pid)
    assert process.ask("open", kernel.device) == DENIED


def test_another_program_in_its_place_is_denied_before_anybody_has_heard_of_it(kernel: KernelNode) -> None:
    known = kernel.enforced()
    process = kernel.process()
    known.add(*process.who)
    assert process.ask("open", kernel.device) == "yes"
    before = process.who
    assert process.ask("become") == "ready"
    assert process.who == before  # to /proc it is the same
    assert process.ask("open", kernel.device) == DENIED
    known.add(*process.who)  # it registers itself
    assert process.ask("open", kernel.device) == "yes"


def test_another_process_that_has_its_pid_later_is_denied(kernel: KernelNode) -> None:
    known = kernel.enforced()
    process = kernel.process()
    pid, start_ticks = process.who
    known.add(pid, start_ticks - 1)
    assert process.ask("open", kernel.device) == DENIED


def test_a_process_of_the_node_in_the_cgroup_of_the_pod_is_left_alone(kernel: KernelNode) -> None:
    kernel.enforced()
    assert kernel.process(contained=False).ask("open", kernel.device) == "yes"


def test_without_an_arbiter_for_long_it_is_as_if_nobody_had_ever_been_denied(kernel: KernelNode) -> None:
    made = kernel.opened()
    made.attach([kernel.uid])
    process = kernel.process()
    assert process.ask("open", kernel.device) == "yes"  # none has ever been there
    seconds = registered.AWAY_SECONDS
    for ago_seconds, answer in ((seconds - 60, DENIED), (seconds + 1, "yes"), (0, DENIED)):
        of_then = time.monotonic_ns() - round(ago_seconds * 1e9)
        registered.RegisteredMap(made.map_descriptor, clock_ns=lambda then=of_then: then).beat()
        assert process.ask("open", kernel.device) == answer


@pytest.mark.slow
def test_the_next_agent_has_who_is_registered_and_nobody_gets_in_between(kernel: KernelNode) -> None:
    known = kernel.enforced()
    process, stranger = kernel.process(), kernel.process()
    known.add(*process.who)
    assert process.ask("open", kernel.device) == "yes"
    following = kernel.opened(majors=frozenset({MISC, denial_program.program.DRIVERS_MAJOR}))
    for asked, answer in ((process, "yes"), (stranger, DENIED)):
        assert asked.ask("open", kernel.device) == answer
    registered.RegisteredMap(following.map_descriptor).keep([process.who])
    following.attach([kernel.uid])
    for asked, answer in ((process, "yes"), (stranger, DENIED)):
        assert asked.ask("open", kernel.device) == answer
    assert process.ask("become") == "ready"
    registered.RegisteredMap(following.map_descriptor).keep([process.who])
    assert process.ask("open", kernel.device) == DENIED
