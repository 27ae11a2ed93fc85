"""The partitioner on simulated GPUs, through the real pynvml."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.deviceplugin import simulated
from tests.deviceplugin.hardware.programs import cutting


@pytest.mark.slow
def test_partitions_a_gpu_repeatedly(gpus: Path) -> None:
    layouts = [
        {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1},
        {"1c.3g.20gb": 3, "1g.5gb+me": 1},
        {},
        {"7g.40gb": 1},
        None,
    ]
    output = simulated.printed(gpus, cutting.again_and_again, layouts)
    done = ("as-wanted", True, "as-wanted", False)
    assert output == [
        (*done, ["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"]),
        (*done, ["1c.3g.20gb", "1c.3g.20gb", "1c.3g.20gb", "1g.5gb+me"]),
        (*done, []),
        (*done, ["7g.40gb"]),
        (*done, []),
    ]


@pytest.mark.slow
def test_next_run_completes_a_killed_one(gpus: Path) -> None:
    """A process is killed at each call that changes the GPU; only the GPU keeps the state."""
    output = simulated.printed(gpus, cutting.killed_at_every_step)
    ((recut, first),) = output
    assert recut >= 8
    assert first == 9, "the mode, four GPU instances and four compute instances"


@pytest.mark.slow
def test_never_changes_an_instance_in_use(gpus: Path) -> None:
    output = simulated.printed(gpus, cutting.beside_an_instance_in_use)
    assert output[0] == ("waiting", True, False, 2)
    assert output[1] == ("as-wanted", True, ["1g.5gb", "1g.5gb", "1g.5gb", "3g.20gb"])
    assert output[2:] == [("waiting",), ("as-wanted", ["7g.40gb"])]


def test_gpu_in_use_keeps_its_mig_mode(gpus: Path) -> None:
    output = simulated.printed(gpus, cutting.on_a_gpu_in_use)
    assert output == [("waiting", True, False), ("In use by another client", "as-wanted", 7)]


def test_refuses_infeasible_layouts_before_any_change(gpus: Path) -> None:
    output = simulated.printed(gpus, cutting.infeasible)
    assert output[0][0] == "refused"
    assert output[0][1].endswith("; 4 × 1g.5gb + 1 × 3g.20gb would fit")
    assert output[0][2] is False
    assert output[1].startswith("NVIDIA A100-SXM4-40GB has no profile 1g.12gb")


def test_tries_other_orders_if_the_driver_chooses_places(gpus: Path) -> None:
    output = simulated.printed(gpus, cutting.by_an_old_driver)
    # It places the 3g at 0 if it comes first, and then the last 1g does not fit.
    assert output == [("as-wanted", ["1g.5gb"] * 4 + ["3g.20gb"])]


def test_describes_mig_devices_as_nvml_does(gpus: Path) -> None:
    output = simulated.printed(gpus, cutting.says_what_devices_are)
    assert output[:2] == [
        ("1g.10gb", 0, 9856, 14, True, 0, 1),
        ("3g.20gb", 1, 19968, 42, True, 0, 3),
    ]
    assert output[2] == [], "the simulated GPU can be cut as the published tables say"


def of_model(directory: Path, model: str, memory: str) -> Path:
    """Create a simulated GPU that supports MIG; return its directory."""
    directory.with_suffix(".ini").write_text(
        "[node]\nname = a\ndriver-version = 580.95.05\ncuda-version = 13.0\n[gpu 0]\npci-bus-id = 00000000:10:00.0\n"
        f"model = {model}\nmemory = {memory}\nmig-capable = yes\ncompute-capability = 9.0\nmultiprocessors = 132\n"
    )
    subprocess.run([simulated.SIMGPU, "create", directory.with_suffix(".ini"), directory], check=True, timeout=30)
    return directory


def test_reads_the_geometry_before_mig_mode(simulation: None, tmp_path: Path) -> None:
    gpus = of_model(tmp_path / "gpus", "NVIDIA X900", "288GiB")
    before, after = simulated.printed(gpus, cutting.says_how_it_can_be_cut)
    assert before == after == ["1g.36gb", "2g.72gb", "3g.144gb", "4g.144gb", "7g.288gb", "1g.36gb+me", "1g.72gb"]


def test_uses_the_catalogue_if_the_driver_reports_no_places(simulation: None, tmp_path: Path) -> None:
    gpus = of_model(tmp_path / "known", "NVIDIA B300 SXM6 AC", "269GiB")
    assert simulated.printed(gpus, cutting.of_a_driver_that_says_no_places) == [(True, "as-wanted", ["3g.135gb"])]
    gpus = of_model(tmp_path / "unknown", "NVIDIA X900", "269GiB")
    assert simulated.printed(gpus, cutting.of_a_driver_that_says_no_places) == [(False, "as-wanted", ["3g.135gb"])]


def test_a30_counts_come_from_the_catalogue(simulation: None, tmp_path: Path) -> None:
    gpus = of_model(tmp_path / "gpus", "NVIDIA A30", "24GiB")
    assert simulated.printed(gpus, cutting.of_a_driver_that_counts_wrongly) == [[4, 2, 1, 1, 1]]
