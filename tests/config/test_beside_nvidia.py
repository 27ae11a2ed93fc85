"""With the component `opt-in` and NVIDIA's values, each GPU node has one device plugin, with any labels."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml

from gpushare import contract
from gpushare.nodefilters import selectors
from tests.config import manifests

VALUES = manifests.CONFIG / "samples" / "nvidia" / "device-plugin-values.yaml"
COMPONENT = manifests.CONFIG / "components" / "opt-in" / "kustomization.yaml"
GPU_LABELS = (
    ("nvidia.com/gpu.present", "true"),
    ("feature.node.kubernetes.io/pci-10de.present", "true"),
    ("feature.node.kubernetes.io/cpu-model.vendor_id", "NVIDIA"),
)
SETS = [dict(chosen) for count in range(1, 4) for chosen in itertools.combinations(GPU_LABELS, count)]


def selected(affinity: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    terms = selectors.of_nodes(affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"])
    assert terms
    return any(term.matches("gpu-1", labels) for term in terms)


def agent_affinity() -> Mapping[str, Any]:
    manifest = manifests.named("DaemonSet", "gpushare-agent")
    (patch,) = [entry for entry in read(COMPONENT)["patches"] if entry["target"]["name"] == "gpushare-agent"]
    patched = jsonpatch.apply_patch(manifest, yaml.safe_load(patch["patch"]))
    affinity: Mapping[str, Any] = patched["spec"]["template"]["spec"]["affinity"]
    return affinity


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("labels", SETS, ids=str)
def test_the_label_decides_which_device_plugin_a_node_has(labels: Mapping[str, str]) -> None:
    agent, nvidia = agent_affinity(), read(VALUES)["affinity"]
    ours = {**labels, contract.NODE_CONFIG_LABEL: "default"}
    assert (selected(agent, labels), selected(nvidia, labels)) == (False, True)
    assert (selected(agent, ours), selected(nvidia, ours)) == (True, False)
