"""Tests that a blocked call to the driver does not block other threads, which may have to unblock it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interposer.conftest import ArbiterMaker
from tests.interposer.container import LIBRARY, Container
from tests.interposer.programs import blocked
from tests.interposer.programs.graphing import LIMIT
from tests.programs import command

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("preload", [(), (LIBRARY,)], ids=["alone", "with the library"])
@pytest.mark.parametrize("meanwhile", blocked.MEANWHILE)
def test_other_threads_proceed_while_a_launch_blocks_in_the_driver(
    container: Container, make_arbiter: ArbiterMaker, preload: tuple[Path, ...], meanwhile: str
) -> None:
    make_arbiter(LIMIT)
    box = Container(container.arbiter_directory, container.gpus, preload)
    ended = box.run(command(blocked.launches_until_no_more_is_taken, meanwhile))
    assert ended.returncode == 0, ended.stderr
