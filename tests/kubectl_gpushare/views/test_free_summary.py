from __future__ import annotations

import dataclasses
from typing import Any

from gpushare import policies
from gpushare.allocation import Memory
from gpushare.mix import ENOUGH_PODS, Mix, RequestClass
from gpushare.placement_profile import PlacementProfile
from gpushare.whatif.world import World
from kubectl_gpushare.options import Options
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.views import gpu_summary, gpu_table
from tests import builders


def sentence(*requests: int, memory_gib: int = 8, **fields: Any) -> str:
    """Return the sentence for a node of four GPUs with these shares, one on each GPU from the first."""
    node = builders.node(**fields)
    held = [
        builders.allocation(f"a{index}", f"GPU-node-a-{index}", request=request, memory_gib=memory_gib)
        for index, request in enumerate(requests)
    ]
    gpus = gpu_summary.summarize([dataclasses.replace(node, allocations=tuple(held))])
    return gpu_summary.free_sentence(gpus, gpu_summary.add_up(gpus))


def test_an_idle_cluster_has_nothing_stranded() -> None:
    assert sentence() == "free 4 with 320Gi of 4 GPUs; largest single share 1 with 80Gi on node-a/0"


def test_stranded_capacity_is_explained() -> None:
    assert sentence(60, 90, 100, 100, memory_gib=40) == (
        "free 0.5 with 160Gi of 4 GPUs, 77% of it stranded: "
        "4 GPUs have less than the typical 0.5 left; largest single share 0.4 with 40Gi on node-a/0"
    )


def test_a_full_cluster() -> None:
    assert sentence(100, 100, 100, 100, memory_gib=80) == "nothing is free on 4 GPUs"


def test_gpus_out_of_service_are_not_free() -> None:
    assert sentence(healthy=False) == "nothing is free on 4 GPUs"


def test_no_gpus_at_all() -> None:
    assert gpu_summary.free_sentence([], gpu_summary.add_up([])) == "no GPU takes shares by annotation"


def test_stranded_capacity_depends_on_the_clusters_mix() -> None:
    node = dataclasses.replace(builders.node(gpus=1), allocations=(builders.allocation(request=40, memory_gib=8),))
    small, whole = (RequestClass(1, percent, Memory(percent=percent)) for percent in (10, 100))
    for asked, stranded in ((small, 0.0), (whole, 1.0)):
        profile = PlacementProfile(mix=Mix({asked: 1.0}, pods=ENOUGH_PODS))
        shown = gpu_table.listing(Snapshot((node,), profile=profile), (), Options(), now=0)
        assert shown.document()["totals"]["fragmentationRatio"] == stranded
        assert World((node,), profile=profile).fragmentation().ratio == stranded


def test_the_typical_request_is_the_median_of_the_mix() -> None:
    assert policies.median_request(policies.DEFAULT_MIX).compute == 0.5
