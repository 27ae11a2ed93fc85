"""An agent can take over ledgers after a restart only with the two capabilities that its DaemonSet adds."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deviceplugin.arbiter import pages
from tests.deviceplugin.arbiter.programs import ledgers
from tests.programs import command

ROOT = Path(__file__).parents[3]


@pytest.fixture
def holder() -> Iterator[tuple[int, tuple[int, int]]]:
    """A process of an ordinary user, the only one that still has the ledger mapped."""
    ledger = pages.Ledger.make(1)
    identity = ledger.device_inode
    process = subprocess.Popen(
        command(ledgers.holds, ledger.descriptor),
        pass_fds=[ledger.descriptor],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        ledger.close()
        yield process.pid, identity
        process.kill()


@pytest.mark.parametrize(
    ("capabilities", "answer"),
    [
        ((), "False None ('SYS_PTRACE', 'CHECKPOINT_RESTORE')"),
        (("sys_ptrace",), "True None ('CHECKPOINT_RESTORE',)"),
        (("checkpoint_restore",), "False None ('SYS_PTRACE',)"),
        (("sys_ptrace", "checkpoint_restore"), "True (7,) ()"),
    ],
    ids=lambda value: "+".join(value) or "none" if isinstance(value, tuple) else "",
)
def test_taking_over_a_ledger_needs_exactly_two_capabilities(
    holder: tuple[int, tuple[int, int]], capabilities: tuple[str, ...], answer: str
) -> None:
    pid, (device, inode) = holder
    bounding = ",".join(["-all", *(f"+{name}" for name in capabilities)])
    limited = ["setpriv", f"--bounding-set={bounding}", "--inh-caps=-all"]
    result = subprocess.run(
        [*limited, *command(ledgers.takes_over, pid, device, inode)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert result.stdout.strip() == answer
