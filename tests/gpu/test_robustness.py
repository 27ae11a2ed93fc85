"""A tenant's neighbour faults or is killed, the arbiter restarts, or a request changes while in use."""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable

import pytest

from bench.gpu import frameworks, robustness
from bench.gpu.bench import Bench
from bench.gpu.modes import NATIVE, OURS
from bench.gpu.report import Report
from bench.gpu.tenants import Gpu
from tests.gpu.conftest import Play

SECONDS = 2.0
ERRORS = {"illegal": 700, "trap": 719, "assert": 710}  # CUDA's errors: illegal address, launch failed, assert


def figures(play: Play, case: Callable[[Bench], Awaitable[None]]) -> dict[str, float]:
    """Run a case of the bench and return its figures by name."""
    report = Report({"gpu": "of the tests"}, datetime.datetime.now(datetime.UTC).date())

    async def story(gpu: Gpu) -> None:
        await case(Bench(gpu, report, SECONDS, 200, rounds=1))

    play(story)
    found = {str(figure["figure"]).removeprefix("gpu."): float(str(figure["value"])) for figure in report.figures}
    assert not [name for name in found if name.endswith(".failed")], report.text
    return found


def test_a_fault_of_one_tenant_ends_no_other(play: Play) -> None:
    found = figures(play, robustness.faulting_tenant)
    assert [found[f"fault.{kind}.{OURS.name}.survived"] for kind in robustness.FAULTS] == [1] * 3
    assert found[f"fault.illegal.{NATIVE.name}.survived"] == 1


@pytest.mark.parametrize("kind", robustness.FAULTS)
def test_a_fault_is_told_to_its_own_program_in_a_share(play: Play, kind: str) -> None:
    async def story(gpu: Gpu) -> None:
        said = (await gpu.run(OURS, [robustness.built("fault"), kind])).stdout
        code = int(said.splitlines()[-1].split()[1])
        assert code == (ERRORS["illegal"] if gpu.machine.simulated else ERRORS[kind])

    play(story)


def test_the_neighbour_of_a_tenant_that_is_killed_with_the_lease_goes_on_at_once(play: Play) -> None:
    found = figures(play, robustness.kill_holding_lease)
    assert 0 < found[f"kill.{OURS.name}.next"] < 5000


def test_tenants_live_through_a_restart_of_the_arbiter_and_a_resize(play: Play) -> None:
    found = figures(play, robustness.restart_and_resize)
    assert found["restart.share.after"] == pytest.approx(robustness.AFTER[0], abs=8)
    assert 0 < found["restart.longest_gap"] < 20_000


def test_slices_of_the_driver_are_known_or_said_not_to_be(play: Play) -> None:
    async def story(gpu: Gpu) -> None:
        said = (await gpu.run(NATIVE, [robustness.built("slices"), "100"])).stdout
        assert said.startswith("not known here" if gpu.machine.simulated else "slices ")

    play(story)


def test_each_framework_fills_its_share_or_is_not_installed(play: Play) -> None:
    found = figures(play, frameworks.framework_memory)
    filled = {name: value for name, value in found.items() if name.endswith(".filled")}
    assert all(0 < value <= frameworks.LIMIT for value in filled.values())


def test_a_program_sees_the_share_by_all_that_it_can_ask(play: Play) -> None:
    found = figures(play, frameworks.nvml_in_share)
    assert found["nvml.cuMemGetInfo.total"] == frameworks.LIMIT
    assert set(found.values()) == {frameworks.LIMIT}
