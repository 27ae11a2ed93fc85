"""Which placeholders may end, which are given back, and how many are created."""

from __future__ import annotations

import dataclasses

from gpushare import borrowing, contract
from gpushare.borrowing import Bounds, Placeholder
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


def test_a_placeholder_that_comes_is_not_spared_while_it_is_wanted() -> None:
    node, there = lending("p0"), [placeholder("p0"), placeholder("p1")]  # p1 is bound, and not reported yet
    idle = {"p0", "p1"}
    plan = borrowing.plan(node, there, Bounds(0, 4), wanted=1, idle_long=idle, most=4)
    assert ([one.uid for one in plan.give_back], plan.delete, plan.create) == (["p0"], (), 0)
    plan = borrowing.plan(node, there, Bounds(1, 4), wanted=0, idle_long=idle, most=4)
    assert ([one.uid for one in plan.give_back], plan.delete) == (["p0"], ())
    plan = borrowing.plan(node, there, Bounds(0, 4), wanted=0, idle_long=idle, most=4)
    assert [one.uid for one in (*plan.give_back, *plan.delete)] == ["p0", "p1"]


def test_an_exposed_gpu_gets_another_placeholder_once_and_only_while_a_gpu_is_free() -> None:
    node = lending(contract.OTHER_OWNER, contract.OTHER_OWNER, shared=("GPU-node-a-0",))
    assert borrowing.to_replace(node, [], free=1, since=100.5) == 1
    assert borrowing.to_replace(node, [], free=0, since=100.5) == 0
    node = lending(contract.OTHER_OWNER, "p1", contract.OTHER_OWNER, shared=("GPU-node-a-0",))
    got_another = dataclasses.replace(placeholder("p1"), created=100.0)
    assert borrowing.to_replace(node, [got_another], free=1, since=100.5) == 0
    before = dataclasses.replace(got_another, created=50.0)
    assert borrowing.to_replace(node, [before], free=1, since=100.5) == 1
