"""`gpushare.io/memory-limit`: lent memory counts as held everywhere."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import codec, errors, ledger, request, resizing, resource_quota
from gpushare.allocation import Allocation, GivenShare, PodRef
from gpushare.gpunode import GpuNode, Resize
from gpushare.placement import filters
from gpushare.placement.filters import FilterInput
from gpushare.resizing import ResizeCause
from tests import builders
from tests.builders import GIB
from tests.gpushare.laws import strategies

GPU = "GPU-node-a-0"


def node(lent_gib: int, memory_gib: int = 24) -> GpuNode:
    """Return a node whose GPU has a share of 4Gi that is lent memory."""
    share = GivenShare(("main",), (GPU,), 50, 100, 4 * GIB, memory_limit_bytes=20 * GIB)
    return dataclasses.replace(
        builders.node(gpus=1, memory_gib=memory_gib),
        allocations=(Allocation("a1", PodRef("default", "trainer", "u-1"), (share,)),),
        resizes=(Resize("a1", 0, (4 + lent_gib) * GIB, 4 * GIB),) if lent_gib else (),
    )


def asked(**annotations: str) -> request.Request:
    return request.parse(builders.pod(request="0.1", **annotations))


def rejection(there: GpuNode, **annotations: str) -> str:
    (demand,), (gpu,) = asked(**annotations).demands, there.gpus
    found = filters.reject(FilterInput(gpu, ledger.use(there)[gpu.uuid], demand.share, request.NO_CONSTRAINTS))
    return found[1] if found is not None else ""


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        ("24Gi", ""),
        ("25Gi", "has 24Gi in total, less than 25Gi (gpushare.io/memory-limit)"),
        ("25%", "is too small: gpushare.io/memory-limit is 6Gi of it, less than the requested 8Gi"),
    ],
)
def test_a_gpu_must_be_able_to_give_the_limit(limit: str, sentence: str) -> None:
    assert rejection(node(0), memory="8Gi", memory_limit=limit) == sentence


def test_lent_memory_is_given_to_no_other_share() -> None:
    assert ledger.use(node(8))[GPU].memory_bytes == 12 * GIB
    assert rejection(node(8), memory="12Gi") == ""
    assert rejection(node(8), memory="13Gi") == "has 12Gi of 24Gi free, 8Gi is lent to its pods"
    other = builders.allocation("a2", GPU, request=10, memory_gib=13)
    with pytest.raises(errors.LedgerError, match="does not have enough left"):
        ledger.reserve(node(8), other)
    assert ledger.violations(ledger.reserve(node(7), other)) == []


def test_a_share_that_grows_takes_over_what_it_is_lent() -> None:
    there = node(20)
    wanted = request.parse(builders.pod(request="0.5", memory="20Gi", memory_limit="24Gi"))
    step = resizing.step(there, "a1", resizing.asked(wanted, there.allocations[0], there))
    assert (step.waits_for, ledger.use(step.node)[GPU].memory_bytes) == ("", 24 * GIB)


def test_a_share_that_cannot_grow_learns_how_much_is_lent() -> None:
    there = ledger.reserve(node(8), builders.allocation("a2", GPU, request=10, memory_gib=8, uid="u-2"))
    wanted = request.parse(builders.pod(request="0.1", memory="16Gi"))
    step = resizing.step(there, "a2", resizing.asked(wanted, there.allocations[1], there))
    assert step.waits_for == "node-a/0 has 4Gi of memory free, 8Gi is lent to its pods, 8Gi more are requested"


def test_a_share_that_uses_lent_memory_shrinks_once_it_uses_less() -> None:
    there = node(4)
    wanted = request.parse(builders.pod(request="0.5", memory="2Gi", memory_limit="20Gi"))
    step = resizing.step(there, "a1", resizing.asked(wanted, there.allocations[0], there))
    assert (step.cause, step.waits_for) == (ResizeCause.USE, "it uses 4Gi, more than the requested 2Gi")
    assert step.node.allocations[0].shares[0].shrink_to_bytes == 2 * GIB


def test_the_limit_is_stored_and_an_invalid_one_ignored() -> None:
    document = codec.to_document(node(4))
    assert codec.read(document) == node(4)
    document["spec"]["allocations"][0]["shares"][0]["memoryLimit"] = "much"
    again = codec.read(document)
    assert again.allocations[0].shares[0].memory_limit_bytes is None
    assert "memoryLimit 'much' is not an amount" in again.problems[0]


@given(strategies.gpu_nodes(), st.integers(0, 40 * GIB))
def test_a_reader_that_does_not_know_lent_memory_finds_no_more_of_it_free(drawn: GpuNode, lent_bytes: int) -> None:
    loans = [
        Resize(entry.id, position, share.memory_bytes + lent_bytes, 0)
        for entry in drawn.allocations
        for position, share in enumerate(entry.shares)
    ]
    node = dataclasses.replace(
        drawn, resizes=tuple(sorted(loans, key=lambda resize: (resize.allocation, resize.share)))
    )
    document, known = codec.to_document(node), ledger.use(dataclasses.replace(node, resizes=()))
    assert codec.read(document) == node
    written = {gpu["uuid"]: gpu["memory"] for gpu in document["status"]["gpus"]}
    for gpu in node.gpus:
        free_bytes = gpu.memory_bytes - ledger.use(node)[gpu.uuid].memory_bytes
        assert written[gpu.uuid] - known[gpu.uuid].memory_bytes <= max(free_bytes, -known[gpu.uuid].memory_bytes)


def test_a_share_that_is_not_restored_yet_may_be_on_any_gpu() -> None:
    lost = dataclasses.replace(builders.node(gpus=2, memory_gib=24), resizes=(Resize("a1", 0, 12 * GIB, 0),))
    status = codec.to_status(lost)
    assert [gpu["memory"] for gpu in status["gpus"]] == [12 * GIB, 12 * GIB]
    assert codec.read({"metadata": {"name": "node-a"}, "status": status}) == lost


def test_a_quota_of_memory_cannot_count_what_is_lent() -> None:
    manifest = builders.pod(request="0.1", memory="4Gi", memory_limit="8Gi")
    for hard, rejected in (("gpushare.io/gpu-memory", True), ("gpushare.io/gpu-percent", False)):
        quota = resource_quota.read({"metadata": {"name": "q"}, "spec": {"hard": {f"requests.{hard}": "40Gi"}}})
        assert quota is not None
        said = resource_quota.uncounted([quota], manifest, request.parse(manifest))
        assert (said is not None and "remove gpushare.io/memory-limit" in said) == rejected
