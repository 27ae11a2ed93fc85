"""The laws of the slots in which shares launch while no arbiter runs."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.arbiter import timetable
from deviceplugin.arbiter.tenant import Grant, Tenant
from deviceplugin.arbiter.timetable import LaunchSlot
from gpushare.allocation import GivenShare
from tests.deviceplugin import arbiter_node, waiting
from tests.deviceplugin.arbiter_node import ArbiterNode

pytestmark = pytest.mark.slow

GPUS = [f"GPU-{number}" for number in range(4)]
NESTED = [GPUS[:4], GPUS[:2], GPUS[2:], *([uuid] for uuid in GPUS)]
ANY = [list(uuids) for count in range(1, 5) for uuids in itertools.combinations(GPUS, count)]


def share(name: str, request: int, limit: int = 100, gpus: list[str] | None = None) -> Tenant:
    grants = tuple(Grant(uuid, 1 << 30, request, limit) for uuid in gpus or GPUS[:1])
    return Tenant(name, "default", name, ("main",), 0, grants)


def turns(shares: list[Tenant]) -> dict[str, tuple[tuple[int, int], ...]]:
    """Return begin and end of each share's slots, by pod and GPU."""
    return {
        key.removesuffix("-0"): tuple((slot.begin_permille, slot.begin_permille + slot.permille) for slot in slots)
        for key, slots in timetable.timetable(shares).items()
    }


@st.composite
def nodes(draw: st.DrawFn, sets: list[list[str]] = ANY, most_percent: int = 100) -> list[Tenant]:
    """Draw shares whose requests fit onto the GPUs; some have no request."""
    left = dict.fromkeys(GPUS, most_percent)
    shares = []
    for number in range(draw(st.integers(0, 20))):
        gpus = draw(st.sampled_from(sets))
        request = draw(st.integers(0, min(left[uuid] for uuid in gpus)))
        limit = draw(st.one_of(st.just(100), st.integers(max(1, request), 100)))
        shares.append(share(f"pod{number}", request, limit, gpus))
        for uuid in gpus:
            left[uuid] -= request
    return shares


def by_gpu(shares: list[Tenant]) -> dict[str, list[tuple[Tenant, LaunchSlot]]]:
    slots: dict[str, list[tuple[Tenant, LaunchSlot]]] = {uuid: [] for uuid in GPUS}
    table = timetable.timetable(shares)
    for share in shares:
        for grant, turn in zip(share.grants, table[share.key], strict=True):
            slots[grant.uuid].append((share, turn))
    return slots


@given(nodes())
def test_no_two_shares_launch_at_once_and_every_share_launches(shares: list[Tenant]) -> None:
    for there in by_gpu(shares).values():
        spans = sorted((turn.begin_permille, turn.begin_permille + turn.permille) for _, turn in there)
        assert all(begin < end for begin, end in spans)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
        assert not spans or (spans[0][0] >= 0 and spans[-1][1] <= 1000)


@given(nodes())
def test_every_share_gets_its_request_and_stays_within_its_limit(
    shares: list[Tenant],
) -> None:
    for tenant, turn in itertools.chain.from_iterable(by_gpu(shares).values()):
        grant = tenant.grants[0]
        assert turn.permille <= 10 * grant.limit_percent
        assert turn.permille >= int(10 * grant.request_percent * 0.95)


@given(nodes(most_percent=80))
def test_with_room_for_shares_without_a_request_all_requests_are_met(shares: list[Tenant]) -> None:
    for tenant, turn in itertools.chain.from_iterable(by_gpu(shares).values()):
        assert turn.permille >= 10 * tenant.grants[0].request_percent


@given(nodes(NESTED))
def test_in_nested_sets_a_share_launches_on_all_its_gpus_at_once(shares: list[Tenant]) -> None:
    assert all(len(set(slots)) == 1 for slots in timetable.timetable(shares).values())


@given(nodes([[uuid] for uuid in GPUS]))
def test_no_time_is_left_that_a_share_may_have(shares: list[Tenant]) -> None:
    for there in by_gpu(shares).values():
        at_their_limit = all(turn.permille == 10 * tenant.grants[0].limit_percent for tenant, turn in there)
        assert at_their_limit or sum(turn.permille for _, turn in there) == 1000


@given(nodes(), st.randoms())
def test_the_timetable_does_not_depend_on_the_order_of_shares(shares: list[Tenant], dice: random.Random) -> None:
    mixed = list(shares)
    dice.shuffle(mixed)
    assert dict(timetable.timetable(mixed)) == dict(timetable.timetable(shares))


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=60))
def test_no_two_shares_launch_at_once_even_when_overcommitted(amounts: list[tuple[int, int]]) -> None:
    there = by_gpu([share(f"pod{number}", *amount) for number, amount in enumerate(amounts)])[GPUS[0]]
    spans = sorted((turn.begin_permille, turn.begin_permille + turn.permille) for _, turn in there)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    assert not spans or spans[-1][1] <= 1000


@pytest.mark.parametrize(
    ("amounts", "expected"),
    [
        ([(50, 100), (50, 100)], [(0, 500), (500, 1000)]),
        ([(10, 100)] * 10, [(100 * number, 100 * number + 100) for number in range(10)]),
        ([(20, 100), (40, 100)], [(0, 333), (333, 1000)]),  # unclaimed time is split by request
        ([(30, 30), (30, 100)], [(0, 300), (300, 1000)]),  # time above one limit goes to the other share
        ([(10, 10)], [(0, 100)]),
        ([(50, 100)], [(0, 1000)]),
        ([(100, 100), (0, 100)], [(0, 990), (990, 1000)]),
        ([(0, 100), (0, 100)], [(0, 500), (500, 1000)]),
    ],
)
def test_examples(amounts: list[tuple[int, int]], expected: list[tuple[int, int]]) -> None:
    shares = [share(f"pod{number}", *amount) for number, amount in enumerate(amounts)]
    assert [span for (span,) in turns(shares).values()] == expected


def test_gangs_come_first_and_others_fill_the_gaps() -> None:
    shares = [
        share("a", 50, 50, GPUS[:1]),
        share("b", 50, 100, GPUS[1:2]),
        share("pair", 30, 30, GPUS[1:3]),
        share("wide", 20, 20, GPUS[:3]),
    ]
    assert turns(shares) == {
        "wide": ((0, 200),) * 3,
        "pair": ((200, 500),) * 2,
        "a": ((200, 700),),
        "b": ((500, 1000),),
    }


def test_a_gang_without_a_common_time_has_its_request_on_each_gpu() -> None:
    """Three gangs share three GPUs in pairs, by halves: the third gang cannot launch on both its GPUs at once."""
    pairs = [GPUS[0:2], GPUS[1:3], [GPUS[0], GPUS[2]]]
    shares = [share(f"pair{number}", 50, 100, gpus) for number, gpus in enumerate(pairs)]
    assert turns(shares) == {
        "pair0": ((0, 500), (0, 500)),
        "pair1": ((500, 1000), (500, 1000)),
        "pair2": ((500, 1000), (0, 500)),
    }


def test_more_shares_than_thousandths_get_no_slots() -> None:
    table = timetable.timetable([share(f"pod{number}", 0) for number in range(1001)])
    assert set(table.values()) == {(timetable.NO_TURN,)}


async def said(process: arbiter_node.Share) -> list[list[int]]:
    """Return begin and length of a process's slots, as its page has them."""
    return list((await process("limits"))["turns"])


async def test_pages_are_updated_as_shares_come_go_and_are_resized(node: ArbiterNode) -> None:
    for pod in ("one", "two"):
        node.add_pod(pod, GivenShare(("main",), tuple(arbiter_node.GPUS[:2]), 30, 100, 1 << 20))
    first = await node.share("one")
    await first("hello")
    assert await said(first) == [[0, 1000]] * 2
    second, third = await node.share("two"), await node.share("two")
    for process in (second, third):
        await process("hello")
    assert await said(first) == [[0, 500]] * 2
    assert await said(second) == await said(third) == [[500, 500]] * 2
    node.change("two", request_percent=70)
    assert await said(first) == [[0, 300]] * 2
    assert await said(second) == [[300, 700]] * 2
    await second.kill()
    assert await said(first) == [[0, 300]] * 2
    await third.kill()
    await waiting.until(lambda: node.used("two") is None)
    assert await said(first) == [[0, 1000]] * 2


async def test_the_next_agent_publishes_the_timetable_too(node: ArbiterNode) -> None:
    for pod, request in (("one", 20), ("two", 30)):
        node.add_pod(pod, GivenShare(("main",), (arbiter_node.GPUS[0],), request, 50, 1 << 20))
    shares = [await node.share("one"), await node.share("two")]
    for process in shares:
        await process("hello")
    before = [await said(share) for share in shares]
    await node.stop()
    await node.start()
    for process in shares:
        await process("close")
        await process("hello")
    assert [await said(share) for share in shares] == before == [[[0, 500]], [[500, 500]]]
