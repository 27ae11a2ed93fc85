"""Our labels are those of NVIDIA's GPU Feature Discovery, value by value, for the same simulated GPUs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from deviceplugin.labels import whole, words
from tests.deviceplugin import simulated

RECORDED = yaml.load(Path(__file__).with_name("gfd.yaml").read_text(), Loader=yaml.BaseLoader)  # noqa: S506 (all text)

# One process a node: cuts its GPUs for one case after another, and prints the labels of each.
PROGRAM = """
import json, sys
from pathlib import Path
from deviceplugin.hardware import (discovery, nvml_mig)
from deviceplugin.labels import (label_facts, gpu_resources, whole)
driver = nvml.Nvml()
mig = nvml_mig.MigDriver(driver)
uuids = [gpu.uuid for gpu in driver.snapshot().gpus]

def cut(uuid, profiles):
    if mig.mig_mode(uuid) is None or (not profiles and not mig.mig_mode(uuid).current):
        return
    for one in mig.mig_instances(uuid) if mig.mig_mode(uuid).current else ():
        for part in one.parts:
            mig.destroy_compute_instance(uuid, one.id, part.id)
        mig.destroy_gpu_instance(uuid, one.id)
    assert mig.set_mig_mode(uuid, enabled=bool(profiles)) == ""
    kinds = {str(kind.profile): kind for kind in mig.mig_geometry(uuid).kinds}
    for name in profiles:
        made = mig.create_gpu_instance(uuid, kinds[name], None)
        mig.create_compute_instance(uuid, made, kinds[name].gpu_slices)

made = []
for case in json.loads(sys.argv[1]):
    for uuid, profiles in zip(uuids, case["cut"] or [[] for _ in uuids], strict=True):
        cut(uuid, profiles)
    entries = tuple(gpu_resources.Replication(*one) for one in case["shared"])
    gpus = driver.snapshot().gpus
    facts = label_facts.facts(
        driver, gpus, discovery.read(driver, gpus, {}), machine_type_file="/nowhere", sys_root=Path(sys.argv[2])
    )
    sharing = gpu_resources.LabelledSharing("time-slicing" if entries else "none", entries)
    made.append(whole.labels(facts, strategy=case["strategy"], sharing=sharing))
print(json.dumps(made))
"""


def recorded(case: Mapping[str, Any]) -> dict[str, str]:
    return {
        f"{words.PREFIX}{group}.{key}": value
        for group, labels in case["labels"].items()
        for key, value in labels.items()
    }


def question(case: Mapping[str, Any]) -> dict[str, Any]:
    shared = [
        (f"{words.PREFIX}{name}", int(one["replicas"]), one.get("rename", ""))
        for name, one in case.get("time_slicing", {}).items()
    ]
    return {"strategy": case["strategy"], "cut": case.get("cut", []), "shared": shared}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Our labels of each case."""
    simulated.build()
    found = {}
    for node, description in RECORDED["nodes"].items():
        directory = tmp_path_factory.mktemp(node)
        path = simulated.ROOT / description if description.endswith(".ini") else directory / "node.ini"
        if not description.endswith(".ini"):
            path.write_text(description)
        simulated.command("create", path, directory / "gpus")
        simulated.command("sysfs", directory / "gpus", directory / "root")
        cases = [case for case in RECORDED["cases"] if case["node"] == node]
        ran = simulated.run(directory / "gpus", PROGRAM, json.dumps(list(map(question, cases))), directory / "root/sys")
        assert ran.returncode == 0, ran.stderr
        found.update(zip([case["id"] for case in cases], json.loads(ran.stdout), strict=True))
    return found


@pytest.mark.parametrize("case", RECORDED["cases"], ids=[case["id"] for case in RECORDED["cases"]])
def test_labels_are_those_of_gpu_feature_discovery(case: Mapping[str, Any], ours: dict[str, dict[str, str]]) -> None:
    by_chance = {whole.MACHINE, *(f"{words.PREFIX}{key}" for key in case.get("by_chance", []))}
    assert left_out(ours[case["id"]], by_chance) == left_out(recorded(case), by_chance)


def left_out(labels: Mapping[str, str], keys: Iterable[str]) -> dict[str, str]:
    return {key: value for key, value in labels.items() if key not in set(keys)}
