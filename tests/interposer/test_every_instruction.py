"""At every instruction of a program, it is charged for all that it has of the GPU; so it may be killed at any of them."""

from __future__ import annotations

import platform
import random
import subprocess
from pathlib import Path

import pytest

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import DRIVERS, PROBE, ROOT, Container, finishing
from tests.interposer.launching import line
from tests.interposer.reference_arbiter import ReferenceArbiter

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="single steps of other processors are not tried"),
]
HERE = Path(__file__).parent
LIMIT = 64 * MIB
KILLS = 2


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, and who goes through it."""
    directory = tmp_path_factory.mktemp("steps")
    compiler = ["gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'simgpu'}"]
    subprocess.run([*compiler, HERE / "stepper.c", "-o", directory / "stepper"], check=True)
    subprocess.run(
        [*compiler, HERE / "steps.c", "-o", directory / "steps", "-L", DRIVERS, "-l:libcuda.so.1"], check=True
    )
    return directory


def step(
    container: Container, arbiter: ReferenceArbiter, programs: Path, way: str, last: int | None = None
) -> tuple[int, int, int]:
    """Instructions, and the most bytes held and charged; `last`: then it is killed."""
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


# Each way that steps.c has, and how much it takes at least.
WAYS = {"plain": 40, "pooled": 32, "by_handle": 4, "array": 4, "graph": 10, "with_context": 1}


@pytest.mark.parametrize(("way", "least_mib"), WAYS.items(), ids=WAYS.keys())
def test_at_no_instruction_more_is_held_than_charged_wherever_it_is_killed(
    container: Container, make_arbiter: ArbiterMaker, programs: Path, way: str, least_mib: int
) -> None:
    arbiter = make_arbiter(LIMIT)
    steps, held, charged = step(container, arbiter, programs, way)
    assert steps > 1000
    assert least_mib * MIB <= held <= charged
    dice = random.Random(way)
    for _ in range(KILLS):
        last = dice.randrange(steps * 9 // 10)  # another run may take some instructions less
        assert step(container, arbiter, programs, way, last)[0] == last
        filled = container.run([PROBE, "--fill"]).stdout.splitlines()[-1]
        assert filled == f"filled {LIMIT}", last
