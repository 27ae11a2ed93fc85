"""The driver counts as the keeper of memory limits only where it has shown that it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deviceplugin import simulated
from tests.deviceplugin.memory_limits.conftest import DESCRIPTION
from tests.deviceplugin.memory_limits.programs import probing

pytestmark = pytest.mark.slow


@pytest.fixture
def gpus(simulation: None, tmp_path: Path) -> Path:
    (tmp_path / "node.ini").write_text(DESCRIPTION.format(driver="615.20.01"))
    simulated.command("create", tmp_path / "node.ini", tmp_path / "gpus")
    return tmp_path / "gpus"


def test_needs_the_cgroup_of_a_pod_in_cgroup_v2(gpus: Path, cgroups: Path, tmp_path: Path) -> None:
    assert simulated.printed(gpus, probing.enforcement, str(tmp_path)) == [["library"]]
    assert simulated.printed(gpus, probing.enforcement, str(cgroups)) == [["library"]]
    (cgroups / "kubepods" / "pod00000000-0000-0000-0000-000000000000").mkdir(parents=True)
    assert simulated.printed(gpus, probing.enforcement, str(cgroups)) == [["driver"]]


def test_a_gpu_in_mig_mode_keeps_none(gpus: Path, cgroups: Path) -> None:
    (cgroups / "kubepods" / "pod00000000-0000-0000-0000-000000000000").mkdir(parents=True)
    assert simulated.printed(gpus, probing.in_mig_mode, str(cgroups)) == [["driver", "library", "driver"]]


def test_an_agent_in_a_pod_tries_its_own_cgroup_only(gpus: Path, cgroups: Path) -> None:
    own, another = (f"00000000-0000-0000-0000-00000000000{digit}" for digit in range(2))
    (cgroups / "kubepods" / f"pod{another}").mkdir(parents=True)
    assert simulated.printed(gpus, probing.enforcement, str(cgroups), own) == [["library"]]
    (cgroups / "kubepods" / f"pod{own}").mkdir()
    assert simulated.printed(gpus, probing.enforcement, str(cgroups), own) == [["driver"]]


def test_kernels_without_the_controller_keep_none(gpus: Path, cgroups: Path) -> None:
    (cgroups / "kubepods" / "pod00000000-0000-0000-0000-000000000000").mkdir(parents=True)
    assert simulated.printed(gpus, probing.enforcement, str(cgroups), "", "6.13.12") == [["library"]]
    assert simulated.printed(gpus, probing.enforcement, str(cgroups), "", "6.14.0-29-generic") == [["driver"]]
