"""Our labels equal those of NVIDIA's GPU Feature Discovery, value by value, for the same simulated GPUs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from deviceplugin.report import gpu_labels
from tests.deviceplugin import simulated
from tests.deviceplugin.report.programs import labelling

RECORDED = yaml.load(Path(__file__).with_name("gfd.yaml").read_text(), Loader=yaml.BaseLoader)  # noqa: S506 (all text)


def recorded(case: Mapping[str, Any]) -> dict[str, str]:
    return {
        f"{gpu_labels.PREFIX}{group}.{key}": value
        for group, labels in case["labels"].items()
        for key, value in labels.items()
    }


def question(case: Mapping[str, Any]) -> dict[str, Any]:
    shared = [
        (f"{gpu_labels.PREFIX}{name}", int(resource["replicas"]), resource.get("rename", ""))
        for name, resource in case.get("time_slicing", {}).items()
    ]
    return {"strategy": case["strategy"], "cut": case.get("cut", []), "shared": shared}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Compute our labels for each case."""
    simulated.build()
    labels = {}
    for node, description in RECORDED["nodes"].items():
        directory = tmp_path_factory.mktemp(node)
        path = simulated.ROOT / description if description.endswith(".ini") else directory / "node.ini"
        if not description.endswith(".ini"):
            path.write_text(description)
        simulated.command("create", path, directory / "gpus")
        simulated.command("sysfs", directory / "gpus", directory / "root")
        cases = [case for case in RECORDED["cases"] if case["node"] == node]
        ran = simulated.run(
            directory / "gpus", labelling.labels, list(map(question, cases)), str(directory / "root/sys")
        )
        assert ran.returncode == 0, ran.stderr
        labels.update(zip([case["id"] for case in cases], json.loads(ran.stdout), strict=True))
    return labels


@pytest.mark.parametrize("case", RECORDED["cases"], ids=[case["id"] for case in RECORDED["cases"]])
def test_labels_are_those_of_gpu_feature_discovery(case: Mapping[str, Any], ours: dict[str, dict[str, str]]) -> None:
    by_chance = {f"{gpu_labels.PREFIX}gpu.machine", *(f"{gpu_labels.PREFIX}{key}" for key in case.get("by_chance", []))}
    assert left_out(ours[case["id"]], by_chance) == left_out(recorded(case), by_chance)


def left_out(labels: Mapping[str, str], keys: Iterable[str]) -> dict[str, str]:
    return {key: value for key, value in labels.items() if key not in set(keys)}
