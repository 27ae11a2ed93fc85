"""A stolen token of the scheduled defragmentation: it cordons GPUs and changes nothing else of a GPUNode."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gpushare import contract
from lab import lab_errors
from tests import rights
from tests.config.conftest import WAIT_SECONDS, Cluster

pytestmark = pytest.mark.apiserver

USER = f"system:serviceaccount:{contract.SYSTEM_NAMESPACE}:{rights.DEFRAG}"
NODE = f"{contract.GPUNODE_PATH}/defragmented"
MARK = f"{contract.DEFRAG_LABEL_PREFIX}GPU-1"
AMOUNTS = {"request": 50, "limit": 100, "memory": 1}
SHARE = {
    "id": "a1",
    "pod": {"namespace": "a", "name": "b"},
    "shares": [{"containers": ["main"], "gpus": ["GPU-1"], **AMOUNTS}],
}


@pytest.fixture(scope="module")
def cluster(installed: Cluster) -> Cluster:
    """With a GPUNode, once the policy is in force."""
    installed.administrator.delete(NODE)
    labels = {"metadata": {"name": "defragmented", "labels": {"team": "ml"}}}
    node = {"apiVersion": contract.API_VERSION, "kind": contract.GPUNODE_KIND, **labels}
    installed.administrator.create(contract.GPUNODE_PATH, {**node, "spec": {"allocations": []}})
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            patch(installed, {"metadata": {"labels": {"probe": "x"}}}, dry_run=True)
        except lab_errors.LabError as error:
            assert "gpushare-defrag" in str(error)
            return installed
        assert time.monotonic() < deadline, f"gpushare-defrag is not in force after {WAIT_SECONDS} s"
        time.sleep(0.1)


def patch(cluster: Cluster, body: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
    return cluster.administrator.patch(NODE + "?dryRun=All" * dry_run, body, user=USER)


def test_it_cordons_and_uncordons(cluster: Cluster) -> None:
    mark = {"metadata": {"labels": {MARK: "x.20990101T000000Z"}}, "spec": {"cordoned": ["GPU-1"]}}
    assert patch(cluster, mark)["spec"]["cordoned"] == ["GPU-1"]
    assert patch(cluster, {"metadata": {"labels": {MARK: None}}, "spec": {"cordoned": []}})["spec"]["cordoned"] == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"spec": {"allocations": [SHARE]}}, "may only cordon GPUs"),
        ({"spec": {"allocations": None}}, "may only cordon GPUs"),
        ({"metadata": {"annotations": {"x": "y"}}}, "may only cordon GPUs"),
        ({"metadata": {"finalizers": ["example.com/stay"]}}, "may only cordon GPUs"),
        ({"metadata": {"labels": {"team": None}}}, "only labels of a GPUNode that start with defrag.gpushare.io/"),
        ({"metadata": {"labels": {"more": "x"}}}, "only labels of a GPUNode that start with defrag.gpushare.io/"),
    ],
)
def test_it_changes_nothing_else(cluster: Cluster, body: dict[str, Any], said: str) -> None:
    with pytest.raises(lab_errors.LabError, match=said):
        patch(cluster, body)
