"""Shares of init containers, sidecars and app containers: a GPU holds as much as kube-scheduler would count."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import codec, contract, ledger, placement
from gpushare import request as requests
from gpushare.allocation import ALL_STEPS, Allocation, PodRef
from gpushare.gpunode import GpuNode
from gpushare.nodefilters import pod_requests, share_resources
from gpushare.placement import NodeView, Placement
from gpushare.placement.fleet import Fleet
from tests import builders

pytestmark = pytest.mark.slow

GIB = 2**30

percent_and_gib = st.none() | st.tuples(st.integers(1, 100), st.integers(1, 60))


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a pod in which some containers have their own share, given as `percent` and `gib`."""
    inits = [
        {
            "name": f"init-{number}",
            "share": draw(percent_and_gib),
            **draw(st.sampled_from([{}, {"restartPolicy": "Always"}])),
        }
        for number in range(draw(st.integers(0, 4)))
    ]
    apps = [{"name": f"app-{number}", "share": draw(percent_and_gib)} for number in range(draw(st.integers(1, 3)))]
    annotations = {}
    for container in (*inits, *apps):
        if (share := container.pop("share")) is not None:
            annotations[f"{contract.REQUEST}.{container['name']}"] = f"{share[0] / 100:.2f}"
            annotations[f"{contract.MEMORY}.{container['name']}"] = f"{share[1]}Gi"
    metadata = {"name": "pod", "namespace": "default", "annotations": annotations}
    return {"metadata": metadata, "spec": {"initContainers": inits, "containers": apps}}


with_share = pods().filter(lambda manifest: manifest["metadata"]["annotations"])


def by_kubernetes(manifest: dict[str, Any], amounts: dict[str, int]) -> int:
    """Return the pod's peak of an amount, by the formula in Kubernetes' documentation."""
    sidecars = 0
    peak = 0
    for container in manifest["spec"]["initContainers"]:
        own = amounts.get(container["name"], 0)
        if container.get("restartPolicy") == "Always":
            sidecars += own
            peak = max(peak, sidecars)
        else:
            peak = max(peak, own + sidecars)
    return max(peak, sidecars + sum(amounts.get(container["name"], 0) for container in manifest["spec"]["containers"]))


def amounts_on(entry: Allocation, uuid: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return each container's compute and memory on a GPU."""
    there = [share for share in entry.shares if uuid in share.gpu_uuids]
    return (
        {share.containers[0]: share.request_percent for share in there},
        {share.containers[0]: share.memory_bytes for share in there},
    )


def placed(manifest: dict[str, Any], node: GpuNode, identity: str = "a1") -> Allocation | None:
    request = requests.parse(manifest)
    outcome = placement.place([NodeView.from_node(node)], request)
    if not isinstance(outcome, Placement):
        return None
    return outcome.allocation(request, allocation_id=identity, pod=PodRef("default", "pod", "u"), reserved_until=None)


@given(with_share)
def test_gpu_holds_what_kubernetes_counts(manifest: dict[str, Any]) -> None:
    entry = placed(manifest, builders.node(gpus=20))
    assert entry is not None
    for uuid in entry.gpu_uuids:
        percents, sizes = amounts_on(entry, uuid)
        assert ledger.held(entry, uuid) == (by_kubernetes(manifest, percents), by_kubernetes(manifest, sizes))


@given(st.lists(with_share, max_size=6), st.integers(1, 3))
def test_no_gpu_is_overcommitted_at_any_step_of_a_pod(manifests: list[dict[str, Any]], gpus: int) -> None:
    node = builders.node(gpus=gpus)
    there: list[tuple[dict[str, Any], Allocation]] = []
    for number, manifest in enumerate(manifests):
        if (entry := placed(manifest, node, f"a{number}")) is not None:
            node = ledger.reserve(node, entry)
            there.append((manifest, entry))
    assert not ledger.violations(node)
    for gpu in node.gpus:
        totals: collections.Counter[str] = collections.Counter()
        for manifest, entry in there:
            percents, sizes = amounts_on(entry, gpu.uuid)
            totals["percent"] += by_kubernetes(manifest, percents)
            totals["bytes"] += by_kubernetes(manifest, sizes)
        assert totals["percent"] <= 100
        assert totals["bytes"] <= gpu.memory_bytes


@given(with_share)
def test_pod_that_kubernetes_counts_as_one_gpu_fits_on_one(manifest: dict[str, Any]) -> None:
    counted = pod_requests.requests(share_resources.equipped(manifest))
    fits = counted.get(contract.RESOURCE_PERCENT, 0) <= 100 and counted.get(contract.RESOURCE_MEMORY, 0) <= 80 * GIB
    node = builders.node(gpus=1)
    fleet = Fleet()
    fleet.update(NodeView.from_node(node))
    assert (placed(manifest, node) is not None) == fits
    assert isinstance(fleet.place(requests.parse(manifest)), Placement) == fits


@given(with_share)
def test_steps_survive_storage_and_default_to_all(manifest: dict[str, Any]) -> None:
    node = builders.node(gpus=20)
    entry = placed(manifest, node)
    assert entry is not None
    node = ledger.reserve(node, entry)
    document = codec.to_document(node)
    assert codec.read(document).allocations == (entry,)
    for share in document["spec"]["allocations"][0]["shares"]:  # as an earlier release writes it
        share.pop("firstStep", None)
        share.pop("lastStep", None)
    (earlier,) = codec.read(document).allocations
    assert earlier == dataclasses.replace(
        entry, shares=tuple(dataclasses.replace(share, steps=ALL_STEPS) for share in entry.shares)
    )
    for uuid in entry.gpu_uuids:
        percents, sizes = amounts_on(entry, uuid)
        assert ledger.held(earlier, uuid) == (sum(percents.values()), sum(sizes.values()))
