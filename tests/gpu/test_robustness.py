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


def test_a_fault_in_one_tenant_does_not_end_others(play: Play) -> None:
    found = figures(play, robustness.faulting_tenant)
    assert [found[f"fault.{kind}.{OURS.name}.survived"] for kind in robustness.FAULTS] == [1] * 3
    assert found[f"fault.illegal.{NATIVE.name}.survived"] == 1


@pytest.mark.parametrize("kind", robustness.FAULTS)
def test_a_faulting_program_in_a_share_gets_its_error(play: Play, kind: str) -> None:
    async def story(gpu: Gpu) -> None:
        said = (await gpu.run(OURS, [robustness.built("fault"), kind])).stdout
        code = int(said.splitlines()[-1].split()[1])
        assert code == (ERRORS["illegal"] if gpu.machine.simulated else ERRORS[kind])

    play(story)


def test_killing_a_tenant_with_the_lease_does_not_delay_its_neighbour(play: Play) -> None:
    found = figures(play, robustness.kill_holding_lease)
    assert 0 < found[f"kill.{OURS.name}.next"] < 5000


def test_tenants_survive_an_arbiter_restart_and_a_resize(play: Play) -> None:
    found = figures(play, robustness.restart_and_resize)
    assert found["restart.share.after"] == pytest.approx(robustness.AFTER[0], abs=8)
    assert 0 < found["restart.longest_gap"] < 20_000


def test_time_slices_of_the_driver_are_measured_or_reported_unknown(play: Play) -> None:
    async def story(gpu: Gpu) -> None:
        said = (await gpu.run(NATIVE, [robustness.built("slices"), "100"])).stdout
        assert said.startswith("not known here" if gpu.machine.simulated else "slices ")

    play(story)


def test_each_installed_framework_fills_its_share(play: Play) -> None:
    found = figures(play, frameworks.framework_memory)
    filled = {name: value for name, value in found.items() if name.endswith(".filled")}
    assert all(0 < value <= frameworks.LIMIT for value in filled.values())


def test_every_query_shows_the_share(play: Play) -> None:
    found = figures(play, frameworks.nvml_in_share)
    assert found["nvml.cuMemGetInfo.total"] == frameworks.LIMIT
    assert set(found.values()) == {frameworks.LIMIT}
