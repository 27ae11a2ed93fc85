"""NVIDIA's own device plugin next to gpushare: on other nodes, and on a node whose GPUs are borrowed."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpushare import contract
from lab import access, cluster, gpushare, lab_layout
from tests.e2e import borrowed_node, test_borrowed_gpus
from tests.e2e.observation import Observer, eventually
from tests.e2e.test_life_of_a_pod import sleeper
from tests.integrations import nvidia_plugin

pytestmark = [pytest.mark.integration, pytest.mark.lab(own=True), pytest.mark.timeout(900)]
PERCENT = contract.RESOURCE_PERCENT
WHOLE = contract.BORROWED_RESOURCE
SLOWLY = 120.0


@pytest.fixture
def pair() -> Iterator[tuple[access.Access, lab_layout.Layout]]:
    """A lab with two nodes that NVIDIA's plugin serves, and no gpushare."""
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch:
        directory = Path(scratch) / "lab"
        try:
            administrator = cluster.up(directory, node_count=2, owner=os.getpid())
            layout = lab_layout.load(directory)
            gpushare.prepare(layout)
            with nvidia_plugin.running(administrator, layout):
                yield administrator, layout
        finally:
            cluster.down(directory)


def test_a_node_moves_to_gpushare_and_back(pair: tuple[access.Access, lab_layout.Layout]) -> None:
    """Follow docs/nvidia-device-plugin.md, step by step."""
    lab, layout = pair
    moved, stays = (node.name for node in layout.nodes)
    for name in (moved, stays):
        borrowed_node.has_gpus(lab, name, 4)
    with lab.namespace("e2e") as namespace:
        user = Observer(lab, namespace)
        _install(lab)
        assert not _blocked(user), "no node has the label yet"

        _move(lab, moved, f"{contract.NODE_CONFIG_LABEL}=default")
        assert _blocked(user), "both plugins run on the node"
        nvidia_plugin.apply(lab, yaml.safe_load(nvidia_plugin.VALUES.read_text())["affinity"])
        eventually(lambda: nvidia_plugin.nodes(lab) == {stays}, seconds=SLOWLY, what="one plugin for each node")
        assert not _blocked(user)
        gpushare.ready(dataclasses.replace(layout, nodes=layout.nodes[:1]), lab)
        lab.kubectl("uncordon", moved)
        # The new affinity makes the DaemonSet replace its pod on the other node too, which offers no GPU meanwhile.
        expected = [("0", "400"), ("4", "")]
        eventually(lambda: [_offered(lab, node) for node in (moved, stays)] == expected, seconds=SLOWLY, what="GPUs")

        # Each kind of pod gets its own node, and what it asked for.
        user.apply(sleeper("share", request="0.5"))
        for name in ("whole-0", "whole-1"):
            user.apply(borrowed_node.whole(name))
        assert user.running("share", seconds=SLOWLY)["spec"]["nodeName"] == moved
        assert str(20 << 30) in user.inside("share", "gpushare-probe")
        seen = set()
        for name in ("whole-0", "whole-1"):
            assert user.running(name, seconds=SLOWLY)["spec"]["nodeName"] == stays
            (gpu,) = user.inside(name, "gpushare-probe", "--nvml").splitlines()[:1]
            assert str(40 << 30) in gpu
            seen.add(user.inside(name, "sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES"))
        assert len(seen) == 2

        # NVIDIA's plugin hears of a fault through the simulated NVML, as of one of a real GPU.
        _fail(layout, layout.nodes[1], "xid=48")
        eventually(lambda: _offered(lab, stays) == ("3", ""), seconds=SLOWLY, what="a GPU fewer")

        user.delete("pods", "--all")
        _move(lab, moved, f"{contract.NODE_CONFIG_LABEL}-")
        eventually(lambda: nvidia_plugin.nodes(lab) == {moved, stays}, seconds=SLOWLY, what="NVIDIA's plugin back")
        lab.kubectl("uncordon", moved)
        eventually(lambda: _offered(lab, moved) == ("4", "0"), seconds=SLOWLY, what="whole GPUs again")


def test_gpus_of_nvidias_plugin_are_borrowed_and_given_back() -> None:
    with (
        borrowed_node.lab_of_its_own(nvidia_plugin.running) as (lab, layout),
        lab.namespace("e2e") as namespace,
    ):
        test_borrowed_gpus.story(lab, layout, Observer(lab, namespace))


def _install(lab: access.Access) -> None:
    lab.kubectl("apply", "--server-side", f"--filename={gpushare.MANIFESTS.parent / 'base/crd/gpunodes.yaml'}")
    lab.wait_until_established("gpunodes.gpushare.io")
    borrowed_node.apply_with(lab, "opt-in")
    lab.kubectl("rollout", "status", f"deployment/{gpushare.WEBHOOK}", *gpushare.SCOPE, "--timeout=120s", seconds=130)


def _move(lab: access.Access, node: str, label: str) -> None:
    lab.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s", seconds=130)
    lab.kubectl("label", "node", node, "--overwrite", label)


def _blocked(user: Observer) -> bool:
    """Whether `kubectl gpushare check` finds a node with two owners of its GPUs."""
    return "Blocking: gpu-owner" in user.plugin_run("check", check=False).stdout


def _offered(lab: access.Access, node: str) -> tuple[str, str]:
    """Return the node's allocatable whole GPUs and percents of shared ones; empty if it never had any."""
    allocatable = lab.read(f"/api/v1/nodes/{node}")["status"]["allocatable"]
    return allocatable.get(WHOLE, ""), allocatable.get(PERCENT, "")


def _fail(layout: lab_layout.Layout, node: lab_layout.Node, how: str) -> None:
    command = [str(gpushare.DRIVER / "simgpu"), "fail", str(layout.gpus(node)), "0", how]
    subprocess.run(command, check=True, capture_output=True)
