"""Which placeholders may end, which are given back, and how many are created."""

from __future__ import annotations

import dataclasses

from gpushare import borrowing
from gpushare.borrowing import Placeholder
from gpushare.gpunode import GpuNode
from tests import builders

UNREAD = {"id": "s1", "isolation": "of-a-later-release"}


def placeholder(uid: str, *, leaves: bool = False, is_bound: bool = True) -> Placeholder:
    return Placeholder(uid, uid, "node-a", is_bound=is_bound, leaves=leaves)


def lending(*owners: str, shared: tuple[str, ...] = ()) -> GpuNode:
    """Return a node whose GPUs have these owners and are borrowed from them, with a share on each GPU of `shared`."""
    gpus = tuple(builders.gpu(index, owner=owner) for index, owner in enumerate(owners))
    node = GpuNode("node-a", gpus=gpus, allocations=tuple(builders.allocation(uuid, uuid) for uuid in shared))
    return node.borrowing({gpu.uuid: gpu.owner for gpu in gpus})


def test_an_allocation_that_cannot_be_read_may_be_on_any_gpu() -> None:
    node, there = dataclasses.replace(lending("p0"), unread=(UNREAD,)), [placeholder("p0")]
    assert borrowing.idle(node, there, ()) == []
    after = borrowing.borrow(node, there, ["p0"])
    assert after.borrowed == node.borrowed
    marked = node.borrowing({"GPU-node-a-0": borrowing.mark("p0")})
    assert not borrowing.may_end(marked, "p0")
    assert borrowing.may_end(dataclasses.replace(marked, unread=()), "p0")


def test_a_placeholder_without_a_report_may_have_the_unreported_gpu_of_a_share() -> None:
    node = lending("p0", shared=("GPU-unreported",))
    there = [placeholder("p0"), placeholder("p1", leaves=True)]
    assert [one.uid for one in borrowing.idle(node, [placeholder("p0"), placeholder("p1")], ())] == ["p0"]
    after = borrowing.borrow(node, there)
    assert borrowing.mark("p1") not in after.borrowed.values()
    assert not borrowing.may_end(node.borrowing({"p1": borrowing.mark("p1")}), "p1")
