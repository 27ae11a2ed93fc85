"""Tests that programs whose kernels wait for later launches make progress on shared GPUs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpushare import contract
from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import DRIVERS, ROOT, Container, finishing
from tests.interposer.launching import ends_well, line
from tests.interposer.reference_arbiter import Misbehaviour

pytestmark = pytest.mark.slow

BESIDE_A_NEIGHBOUR = Misbehaviour(flags=contract.LEASE_COUNTED)  # the neighbour sleeps


@pytest.fixture(scope="session")
def dependent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program whose work on one GPU waits for work that it launches later on another one."""
    program = tmp_path_factory.mktemp("dependent") / "dependent"
    source = ROOT / "bench" / "launches" / "dependent.c"
    driver = [f"-L{DRIVERS}", "-l:libcuda.so.1", "-Wl,--allow-shlib-undefined", "-pthread"]
    subprocess.run(["gcc", "-std=c11", "-O2", "-o", program, source, *driver], check=True, timeout=60)
    return program


@pytest.mark.parametrize(
    ("mode", "small", "rounds"),
    [("thread", 8, 100), ("thread", 20, 100), ("thread", 600, 20), ("threads", 600, 20)],
)
def test_kernels_that_wait_for_later_launches_make_progress(
    container: Container, make_arbiter: ArbiterMaker, dependent: Path, mode: str, small: int, rounds: int
) -> None:
    """With a second per round it would exceed the timeout."""
    make_arbiter(MIB, MIB, behaviour=BESIDE_A_NEIGHBOUR)
    with finishing(container.start([dependent, mode, str(small), str(rounds)])) as process:
        assert line(process) == "ready"
        ends_well(process, seconds=20)
