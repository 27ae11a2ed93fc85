"""Workers of the GPU bench that fail, hang or print, and the figures they measure."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.gpu.programs import marks
from bench.gpu.tenants import ProgramError
from bench.gpu.workers import Worker, in_a_line

pytestmark = pytest.mark.slow

PIECES = st.lists(st.integers(1, 4000), min_size=1, max_size=200)


def _start(script: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(["sh", "-c", script], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@contextlib.asynccontextmanager
async def running(script: str) -> AsyncIterator[Worker]:
    """Run a shell script as a worker."""
    process = _start(script)
    worker = Worker(process, "script")
    try:
        yield worker
    finally:
        await worker.close()
    assert process.returncode is not None


async def test_an_answer_is_found_among_what_libraries_print() -> None:
    async with running(
        """echo 'loading ...'; echo 'ready {"total": 3}'; read line; echo 'done {"rate": 1}'"""
    ) as worker:
        await worker.ready(20)
        assert worker.facts == {"total": 3}
        assert await worker.ask({"run": 1}, "done", 20) == {"rate": 1}


async def test_a_failure_is_told_and_the_next_command_has_its_own_answer() -> None:
    script = """echo 'ready {}'; read line; echo 'failed {"error": "KeyError"}'; read line; echo 'done {"rate": 2}'; read line"""
    async with running(script) as worker:
        await worker.ready(20)
        with pytest.raises(ProgramError, match="KeyError"):
            await worker.ask({"prepare": "none"}, "prepared", 20)
        assert await worker.ask({"run": 1}, "done", 20) == {"rate": 2}


async def test_the_error_of_one_that_ends_has_the_last_it_said() -> None:
    async with running(
        "echo Traceback >&2; echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1"
    ) as worker:
        with pytest.raises(ProgramError, match="ended with 1") as raised:
            await worker.ready(20)
    assert in_a_line(raised.value) == "ModuleNotFoundError: No module named 'torch'"


async def test_one_that_hangs_is_killed_at_the_end_of_its_time() -> None:
    async with running("echo 'ready {}'; exec sleep 1000") as worker:
        await worker.ready(20)
        with pytest.raises(ProgramError, match="not done after"):
            await worker.ask({"run": 1}, "done", 0.1)
        assert worker.process.wait(20) == -9


@given(pieces=PIECES, warm=st.integers(0, 1000), window=st.integers(1, 4000), amount=st.integers(1, 32))
def test_what_is_counted_is_what_was_done_in_the_time(pieces: list[int], warm: int, window: int, amount: int) -> None:
    moments = [moment / 1000 for moment in itertools.accumulate(pieces)]
    found = marks.figures(moments, 0.0, warm / 1000, (warm + window) / 1000, amount)
    assert found["rate"] * found["seconds"] == pytest.approx(found["pieces"] * amount)
    assert found["p50_ms"] <= found["p99_ms"] <= found["longest_ms"] <= max(pieces) + 1e-6
    assert found["seconds"] <= sum(pieces) / 1000 + 1e-9
    if len([moment for moment in moments if warm / 1000 <= moment <= (warm + window) / 1000]) > 1:
        assert found["seconds"] <= window / 1000 + 1e-9, "nothing outside of it"


def test_one_that_is_held_up_beyond_the_end_counts_until_it_was_done() -> None:
    found = marks.figures([0.5, 9.5], 0.0, 1.0, 2.0, 8)
    assert found["rate"] == pytest.approx(8 / 9)
    assert found["longest_ms"] == pytest.approx(9000)
