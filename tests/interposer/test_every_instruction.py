"""Tests that after every instruction a program is charged for all that it holds, so it can be killed at any time."""

from __future__ import annotations

import platform
import random
import subprocess
from pathlib import Path

import pytest

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import LINK_CUDA, ROOT, Container, compiled, finishing
from tests.interposer.launching import line
from tests.interposer.reference_arbiter import ReferenceArbiter

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="single-stepping is only implemented for x86-64"),
]
HERE = Path(__file__).parent
LIMIT = 64 * MIB
KILLS = 2


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, and the stepper that runs it instruction by instruction."""
    directory = tmp_path_factory.mktemp("steps")
    compiled("stepper.c", directory / "stepper", "-std=gnu11", f"-I{ROOT / 'simgpu'}")
    compiled("steps.c", directory / "steps", "-std=gnu11", f"-I{ROOT / 'simgpu'}", *LINK_CUDA)
    return directory


def step(
    container: Container, arbiter: ReferenceArbiter, programs: Path, way: str, last: int | None = None
) -> tuple[int, int, int]:
    """Return the number of instructions, and the most bytes held and charged; kill the program after `last`
    instructions.
    """
    gpu = min(container.gpus.glob("gpu*"))
    with finishing(container.start([programs / "steps", way])) as process:
        assert line(process) == "ready", process.communicate(timeout=10)
        assert process.stdin is not None
        stdin = process.stdin.fileno()
        words = [str(process.pid), str(stdin), gpu, arbiter.ledger_path, *([] if last is None else [str(last)])]
        ended = subprocess.run(
            [programs / "stepper", *words], pass_fds=(stdin,), capture_output=True, text=True, timeout=100
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
    steps, held, charged = map(int, ended.stdout.split())
    return steps, held, charged


# The ways of steps.c, and the least that each allocates, in MiB.
WAYS = {"plain": 40, "pooled": 32, "by_handle": 4, "array": 4, "graph": 10, "with_context": 1}


@pytest.mark.parametrize(("way", "least_mib"), WAYS.items(), ids=WAYS.keys())
def test_program_killed_at_any_instruction_is_charged_for_what_it_held(
    container: Container, make_arbiter: ArbiterMaker, programs: Path, way: str, least_mib: int
) -> None:
    arbiter = make_arbiter(LIMIT)
    steps, held, charged = step(container, arbiter, programs, way)
    assert steps > 1000
    assert least_mib * MIB <= held <= charged
    dice = random.Random(way)
    for _ in range(KILLS):
        last = dice.randrange(steps * 9 // 10)  # another run may have fewer instructions
        assert step(container, arbiter, programs, way, last)[0] == last
        assert container.filled_bytes() == LIMIT, last
