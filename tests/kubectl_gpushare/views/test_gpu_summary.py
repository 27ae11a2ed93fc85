from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given

from gpushare import gpu_capacity, ledger
from gpushare.gpunode import GpuNode
from kubectl_gpushare.views import gpu_summary
from tests import builders
from tests.gpushare.laws import strategies
from tests.kubectl_gpushare import answered, sample

GIB = 2**30


def test_nodes_are_sorted_naturally() -> None:
    assert list(dict.fromkeys(gpu.node for gpu in gpu_summary.summarize(reversed(sample.nodes())))) == [
        "gpu-1",
        "gpu-2",
        "gpu-10",
    ]


def test_missing_gpu_is_shown_with_its_holder() -> None:
    gone = [gpu for gpu in gpu_summary.summarize(sample.nodes()) if gpu.gone]
    assert [(gpu.name, gpu.statuses, gpu.free) for gpu in gone] == [("gpu-2/GPU-gone", ("Gone",), (0, 0))]


def test_no_share_fits_without_free_memory() -> None:
    node = builders.node(gpus=2)
    full = builders.allocation("a1", "GPU-node-a-0", request=10, memory_gib=80)
    half = builders.allocation("a2", "GPU-node-a-1", request=50, memory_gib=8)
    gpus = gpu_summary.summarize([dataclasses.replace(node, allocations=(full, half))])
    assert gpus[0].largest is None
    assert gpu_summary.add_up(gpus).largest == gpus[1]


def test_a_pod_on_several_gpus_counts_once() -> None:
    assert gpu_summary.add_up(gpu_summary.summarize(sample.nodes()[:1])).pods == 4


def test_missing_gpus_and_other_modes_are_no_capacity() -> None:
    total = gpu_summary.add_up(gpu_summary.summarize(sample.nodes()[1:2]))
    assert (total.gpus, total.total_percent, total.total_memory_bytes) == (4, 300, 240 * GIB)


@pytest.mark.slow
@given(strategies.gpu_nodes())
def test_sums_agree_with_the_domain(node: GpuNode) -> None:
    total = gpu_summary.add_up(gpu_summary.summarize([node]))
    used = ledger.use(node)
    measured = gpu_capacity.fragmentation([(gpu, used[gpu.uuid]) for gpu in node.gpus])
    assert total.free_gpus == measured.free_gpus
    assert total.stranded_gpus == measured.stranded_gpus
    assert total.pods == len([entry for entry in node.allocations if entry.shares])


def test_gpu_with_a_pending_mode_is_changing_with_a_reason() -> None:
    node = answered.waiting_for_pods(sample.nodes()[0])
    first, second, *others = gpu_summary.summarize([node])
    assert (first.statuses, second.statuses) == (("Changing",), ("Changing",))
    assert first.reason == "is to be mps once it is not used any more by ml/trainer, ml/notebook"
    assert second.reason == "is to be mps, which failed: no"
    assert all("Changing" not in gpu.statuses for gpu in others)
    silent = dataclasses.replace(node, conditions=())
    assert gpu_summary.summarize([silent])[0].reason == "is to be mps: its agent does not say why not yet"
