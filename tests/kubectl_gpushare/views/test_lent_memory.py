"""Memory that a pod is lent is shown next to its own, on the GPU and on the pod."""

from __future__ import annotations

import dataclasses

import pytest

from gpushare import contract
from gpushare.gpunode import GpuNode, Resize
from kubectl_gpushare.output import layout
from kubectl_gpushare.output.terminal import Terminal
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.views import gpu_page, gpu_summary, gpu_table, pod_page, pod_table
from tests import builders
from tests.builders import GIB
from tests.kubectl_gpushare import sample

PLAIN = Terminal(columns=None, colours=False, unicode=True)
POD = builders.pod(request="0.5", memory="8Gi", memory_limit="20Gi", uid="u-1")


@pytest.fixture
def node() -> GpuNode:
    entry = builders.allocation("a1", "GPU-node-a-0", memory_gib=8, uid="u-1")
    shares = (dataclasses.replace(entry.shares[0], memory_limit_bytes=20 * GIB),)
    entry = dataclasses.replace(entry, shares=shares)
    return dataclasses.replace(
        builders.node(gpus=1), allocations=(entry,), resizes=(Resize("a1", 0, 12 * GIB, 12 * GIB),)
    )


def test_the_gpu_shows_to_whom_it_is_lent_and_that_it_is_not_free(node: GpuNode) -> None:
    (gpu,) = gpu_summary.summarize([node])
    text = "\n".join(layout.page_lines(gpu_page.gpu(gpu, node, Snapshot((node,), ()), now=sample.NOW), PLAIN))
    assert "4Gi to default/trainer, beyond its memory" in text
    assert "12Gi of 80Gi of memory" in text
    assert "12Gi of 80Gi, 4Gi of it lent" in text
    assert "68Gi" in text
    assert gpu_table.item(gpu)["lentBytes"] == 4 * GIB


def test_the_pod_shows_what_it_is_lent(node: GpuNode) -> None:
    manifest = {**POD, "status": {"phase": "Running"}}
    manifest["metadata"]["annotations"] |= {contract.ALLOCATION: "a1", contract.NODE: "node-a"}
    snapshot = Snapshot((node,), (manifest,))
    (row,) = pod_table.build(snapshot)
    assert pod_table.item(row)["lentBytes"] == 4 * GIB
    assert "8Gi+4Gi" in "\n".join(layout.draw(pod_table.table([row], now=sample.NOW), PLAIN)[0])
    described = pod_page.find(manifest, [node])
    assert "4Gi beyond 8Gi, of at most 20Gi in all" in "\n".join(
        layout.page_lines(pod_page.page(described, snapshot, now=sample.NOW), PLAIN)
    )


def test_each_gpu_shows_what_is_lent_there(node: GpuNode) -> None:
    first = node.allocations[0].shares[0]
    second = dataclasses.replace(first, containers=("second",), gpu_uuids=("GPU-node-a-1",))
    entry = dataclasses.replace(node.allocations[0], shares=(first, second))
    resizes = (Resize("a1", 0, 12 * GIB, 0), Resize("a1", 1, 18 * GIB, 0))
    owner = dataclasses.replace(builders.node(gpus=2), allocations=(entry,), resizes=resizes)
    snapshot = Snapshot((owner,), ())
    lent = [pod_table.on_gpu(entry, None, gpu, snapshot).lent_bytes for gpu in gpu_summary.summarize([owner])]
    assert lent == [4 * GIB, 10 * GIB]
    (row,) = pod_table.build(snapshot)
    assert row.lent_bytes == 14 * GIB


def test_nothing_is_shown_while_nothing_is_lent(node: GpuNode) -> None:
    node = dataclasses.replace(node, resizes=())
    (gpu,) = gpu_summary.summarize([node])
    assert "lentBytes" not in gpu_table.item(gpu)
    text = "\n".join(layout.page_lines(gpu_page.gpu(gpu, node, Snapshot((node,), ()), now=sample.NOW), PLAIN))
    assert "Lent" not in text
