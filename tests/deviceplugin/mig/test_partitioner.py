"""The partitioner on simulated GPUs, through the real pynvml."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.deviceplugin import simulated
from tests.deviceplugin.mig.programs import cutting


@pytest.mark.slow
def test_a_gpu_is_cut_as_wanted_again_and_again(gpus: Path) -> None:
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
def test_killed_at_any_step_the_next_run_completes_it(gpus: Path) -> None:
    """Every call that changes the GPU is the last one of some process; the GPU is the only thing that remembers."""
    output = simulated.printed(gpus, cutting.killed_at_every_step)
    ((recut, first),) = output
    assert recut >= 8
    assert first == 9, "the mode, four GPU instances and four compute instances"


@pytest.mark.slow
def test_an_instance_in_use_is_never_touched(gpus: Path) -> None:
    output = simulated.printed(gpus, cutting.beside_an_instance_in_use)
    assert output[0] == ("waiting", True, False, 2)
    assert output[1] == ("as-wanted", True, ["1g.5gb", "1g.5gb", "1g.5gb", "3g.20gb"])
    assert output[2:] == [("waiting",), ("as-wanted", ["7g.40gb"])]


def test_a_gpu_in_use_keeps_its_mode(gpus: Path) -> None:
    output = simulated.printed(gpus, cutting.on_a_gpu_in_use)
    assert output == [("waiting", True, False), ("In use by another client", "as-wanted", 7)]


def test_what_is_infeasible_is_refused_before_anything_is_touched(gpus: Path) -> None:
    output = simulated.printed(gpus, cutting.infeasible)
    assert output[0][0] == "refused"
    assert output[0][1].endswith("; 4 × 1g.5gb + 1 × 3g.20gb would fit")
    assert output[0][2] is False
    assert output[1].startswith("NVIDIA A100-SXM4-40GB has no profile 1g.12gb")


def test_a_driver_that_chooses_the_places_is_tried_in_other_orders(gpus: Path) -> None:
    output = simulated.printed(gpus, cutting.by_an_old_driver)
    # It puts the 3g at 0 if that comes first, and then there is no place for the last 1g.
    assert output == [("as-wanted", ["1g.5gb"] * 4 + ["3g.20gb"])]


def test_what_is_said_of_a_device_is_what_nvml_says(gpus: Path) -> None:
    output = simulated.printed(gpus, cutting.says_what_devices_are)
    assert output[:2] == [
        ("1g.10gb", 0, 9856, 14, True, 0, 1),
        ("3g.20gb", 1, 19968, 42, True, 0, 3),
    ]
    assert output[2] == [], "the simulated GPU can be cut as the published tables say"


def of_model(directory: Path, model: str, memory: str) -> Path:
    """The directory of a simulated GPU that can be cut."""
    directory.with_suffix(".ini").write_text(
        "[node]\nname = a\ndriver-version = 580.95.05\ncuda-version = 13.0\n[gpu 0]\npci-bus-id = 00000000:10:00.0\n"
        f"model = {model}\nmemory = {memory}\nmig-capable = yes\ncompute-capability = 9.0\nmultiprocessors = 132\n"
    )
    subprocess.run([simulated.SIMGPU, "create", directory.with_suffix(".ini"), directory], check=True, timeout=30)
    return directory


def test_the_driver_says_how_a_gpu_can_be_cut_before_it_is_in_mig_mode(simulation: None, tmp_path: Path) -> None:
    gpus = of_model(tmp_path / "gpus", "NVIDIA X900", "288GiB")
    before, after = simulated.printed(gpus, cutting.says_how_it_can_be_cut)
    assert before == after == ["1g.36gb", "2g.72gb", "3g.144gb", "4g.144gb", "7g.288gb", "1g.36gb+me", "1g.72gb"]


def test_without_the_driver_s_word_the_catalogue_says_how_a_gpu_can_be_cut(simulation: None, tmp_path: Path) -> None:
    gpus = of_model(tmp_path / "known", "NVIDIA B300 SXM6 AC", "269GiB")
    assert simulated.printed(gpus, cutting.of_a_driver_that_says_no_places) == [(True, "as-wanted", ["3g.135gb"])]
    gpus = of_model(tmp_path / "unknown", "NVIDIA X900", "269GiB")
    assert simulated.printed(gpus, cutting.of_a_driver_that_says_no_places) == [(False, "as-wanted", ["3g.135gb"])]


def test_the_counts_of_an_a30_are_the_published_ones(simulation: None, tmp_path: Path) -> None:
    gpus = of_model(tmp_path / "gpus", "NVIDIA A30", "24GiB")
    assert simulated.printed(gpus, cutting.of_a_driver_that_counts_wrongly) == [[4, 2, 1, 1, 1]]
