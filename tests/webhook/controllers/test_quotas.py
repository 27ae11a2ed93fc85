"""A share does not grow beyond the quotas of its namespace."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import contract, errors, ledger
from gpushare.allocation import Allocation, PodRef, Steps
from gpushare.cluster import api_errors
from gpushare.gpunode import GpuNode
from tests import builders
from tests.builders import GIB
from webhook.controllers import resizer
from webhook.controllers.resize_requests import ResizeRequest, ResizeRequests
from webhook.pods.stored_pod import Pod

PERCENT, MEMORY = contract.RESOURCE_PERCENT, contract.RESOURCE_MEMORY


def quota(**hard: str) -> dict[str, Any]:
    names = {"percent": PERCENT, "memory": MEMORY}
    return {"spec": {"hard": {f"requests.{names[key]}": value for key, value in hard.items()}}}


class Listing:
    """Stands for the API server: the tests check what follows from its answers, and how often it is asked."""

    def __init__(self, *documents: Mapping[str, Any], fails: bool = False) -> None:
        self.found, self.fails, self.paths = documents, fails, list[str]()

    async def list(self, path: str, *, keep: Callable[[Any], Any]) -> SimpleNamespace:
        self.paths.append(path)
        if self.fails:
            raise api_errors.Unavailable("no answer")
        return SimpleNamespace(items=[keep(document) for document in self.found])


def cluster(**asked: Mapping[str, str]) -> tuple[GpuNode, list[ResizeRequest]]:
    """Return pods with 0.2 of a GPU and 8Gi each that request another amount."""
    node = builders.node(gpus=1)
    pods = []
    for name, wanted in asked.items():
        entry = builders.allocation(f"id-{name}", request=20, pod_name=name, uid=f"u-{name}")
        node = ledger.reserve(node, entry)
        pods.append(builders.pod(name, allocation=f"id-{name}", **wanted))
        pods[-1]["metadata"]["uid"] = f"u-{name}"
        pods[-1]["spec"]["nodeName"] = node.name
    return node, ResizeRequests().find([node], map(Pod.from_manifest, pods))


async def problems(listing: Listing, **asked: Mapping[str, str]) -> list[str]:
    node, resize_requests = cluster(**asked)
    judged = await resizer.Quotas(listing).check(resize_requests, [node])  # type: ignore[arg-type]
    assert all((resize_request.request is None) == bool(resize_request.problem) for resize_request in judged)
    return [resize_request.problem for resize_request in judged]


MORE = {"request": "0.5", "memory": "16Gi"}


@pytest.mark.parametrize(
    ("hard", "said"),
    [
        ({}, ""),
        ({"percent": "70"}, ""),
        ({"percent": "69"}, f"the ResourceQuota of its namespace leaves 29 of {PERCENT}, but 30 more are requested"),
        ({"memory": "24Gi"}, ""),
        ({"memory": "20Gi"}, f"the ResourceQuota of its namespace leaves 4Gi of {MEMORY}, but 8Gi more are requested"),
        ({"percent": "10"}, f"the ResourceQuota of its namespace leaves 0 of {PERCENT}, but 30 more are requested"),
    ],
)
async def test_quota_refusal_has_the_amounts(hard: dict[str, str], said: str) -> None:
    listing = Listing(quota(**hard), quota(percent="1k"), {"spec": {"hard": {"pods": "10"}}})
    assert await problems(listing, one=MORE, two={"request": "0.1", "memory": "8Gi"}) == [said, ""]


async def test_two_that_grow_at_once_are_added_up() -> None:
    sentences = await problems(Listing(quota(percent="80")), one=MORE, two=MORE)
    assert [bool(problem) for problem in sentences] == [False, True]


async def test_quotas_are_read_for_growing_shares_and_cached() -> None:
    listing = Listing()
    assert await problems(listing, one={"request": "0.1", "memory": "1Gi"}) == [""]
    assert listing.paths == []
    assert await problems(listing, one=MORE, two=MORE) == ["", ""]
    assert listing.paths == ["/api/v1/namespaces/default/resourcequotas"]


async def test_without_an_answer_nothing_grows() -> None:
    (problem,) = await problems(Listing(fails=True), one=MORE)
    assert problem.startswith("the ResourceQuotas of its namespace could not be read")
    assert await problems(Listing(quota(percent="many")), one=MORE) == [problem]


async def test_backfill_reservations_do_not_count_as_held() -> None:
    hold = builders.allocation(contract.BACKFILL_PREFIX + "1", request=70, uid="u")
    node = ledger.reserve(ledger.reserve(builders.node(), hold), builders.allocation("a", "GPU-node-a-1", memory_gib=8))
    assert await resizer.Holdings().sum("default", {"node-a": node}) == {PERCENT: 50, MEMORY: 8 * GIB}
    with pytest.raises(errors.QuantityError):
        resizer.least([quota(percent="x")])


async def test_shares_in_turn_count_as_the_quota_counts_their_containers() -> None:
    entry = builders.allocation("a", request=50, memory_gib=8)
    (main,) = entry.shares
    warm = dataclasses.replace(main, containers=("warm",), request_percent=80, memory_bytes=4 * GIB, steps=Steps(0, 0))
    both = dataclasses.replace(entry, shares=(warm, dataclasses.replace(main, steps=Steps(1))))
    node = ledger.reserve(builders.node(), both)
    assert await resizer.Holdings().sum("default", {"node-a": node}) == {PERCENT: 80, MEMORY: 8 * GIB}


ENTRIES = st.lists(
    st.builds(
        lambda number, namespace, percent, is_backfill_reservation: dataclasses.replace(
            builders.allocation(
                f"{contract.BACKFILL_PREFIX if is_backfill_reservation else ''}{number}", request=percent
            ),
            pod=PodRef(namespace, "p", f"u{number}"),
        ),
        st.integers(0, 9),
        st.sampled_from(("x", "y")),
        st.integers(1, 100),
        st.booleans(),
    ),
    max_size=3,
)


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(("n0", "n1", "n2")), st.none() | ENTRIES), max_size=12))
async def test_law_incremental_sums_equal_the_total(
    steps: list[tuple[str, list[Allocation] | None]],
) -> None:
    holdings, nodes = resizer.Holdings(), dict[str, GpuNode]()
    for name, entries in steps:
        nodes.pop(name, None)
        if entries is not None:
            nodes[name] = dataclasses.replace(builders.node(name), allocations=tuple(entries))
        for namespace in ("x", "y"):
            held = await holdings.sum(namespace, nodes)
            assert +held == +await resizer.Holdings().sum(namespace, nodes)
            shares = [
                share
                for node in nodes.values()
                for entry in node.allocations
                if entry.pod.namespace == namespace and not entry.is_backfill_reservation
                for share in entry.shares
            ]
            assert held[PERCENT] == sum(share.request_percent for share in shares)
