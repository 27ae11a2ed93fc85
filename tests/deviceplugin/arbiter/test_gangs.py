"""Shares of several GPUs, whose kernels wait for each other, get their part of the time and waste no other share's."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deviceplugin.arbiter.scheduling import gangs
from deviceplugin.arbiter.scheduling.account import Entitlement
from deviceplugin.arbiter.tenant import Grant
from deviceplugin.arbiter.tenant import Tenant as Share
from gpushare import contract
from tests.deviceplugin.arbiter.lease_clients import Client, Node
from tests.deviceplugin.arbiter.virtual_gpu import MS
from tests.deviceplugin.arbiter.virtual_node import KERNEL_NS, Tenant, VirtualNode

pytestmark = pytest.mark.slow

SECONDS = 2
POSSIBLE = SECONDS * 1000 * MS // KERNEL_NS


def steps(count: int, tenants: dict[str, Tenant], *, together: bool = True) -> dict[str, float]:
    """Return each share's completed steps, in percent of its steps when alone."""
    node = VirtualNode(count, tenants, together=together)
    node.run(400)
    before = {key: tenant.steps for key, tenant in tenants.items()}
    node.run(SECONDS * 1000)
    return {key: 100 * (tenant.steps - before[key]) / POSSIBLE for key, tenant in tenants.items()}


def two_gangs(count: int, *, threads: bool, crosswise: bool, request: int = 50) -> dict[str, Tenant]:
    order = tuple(range(count))
    return {
        "a": Tenant(order, Entitlement(request, 100), threads=threads),
        "b": Tenant(order[::-1] if crosswise else order, Entitlement(100 - request, 100), threads=threads),
    }


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("threads", [True, False], ids=["a thread a GPU", "one thread"])
@pytest.mark.parametrize("crosswise", [False, True], ids=["the same order", "crosswise"])
def test_two_gangs_lose_little_and_get_their_parts(count: int, threads: bool, crosswise: bool) -> None:
    got = steps(count, two_gangs(count, threads=threads, crosswise=crosswise))
    assert sum(got.values()) >= (80 if threads else 60)  # messages and the drain take the rest
    assert got["a"] / sum(got.values()) == pytest.approx(0.5, abs=0.03)


def test_gangs_get_their_requests() -> None:
    got = steps(2, two_gangs(2, threads=True, crosswise=False, request=30))
    assert got["a"] / sum(got.values()) == pytest.approx(0.3, abs=0.03)


def test_without_coscheduling_two_gangs_block_each_other() -> None:
    """The same workload with an independent scheduler per GPU, which proves that the tests above can fail."""
    got = steps(4, two_gangs(4, threads=False, crosswise=True), together=False)
    assert sum(got.values()) < 10


def test_a_gang_shares_with_single_gpu_shares() -> None:
    tenants = {"gang": Tenant((0, 1, 2, 3), Entitlement(50, 100))}
    tenants |= {str(gpu): Tenant((gpu,), Entitlement(50, 100)) for gpu in range(4)}
    got = steps(4, tenants)
    assert got["gang"] == pytest.approx(50, abs=7)
    assert all(got[str(gpu)] == pytest.approx(50, abs=7) for gpu in range(4))


def test_other_shares_use_the_gpus_of_a_gang_that_cannot_begin() -> None:
    tenants = {
        "gang": Tenant((0, 1), Entitlement(10, 100)),
        "one": Tenant((0,), Entitlement(90, 100)),
        "two": Tenant((1,), Entitlement(40, 100)),
        "three": Tenant((1,), Entitlement(50, 100)),
    }
    got = steps(2, tenants)
    assert got["gang"] == pytest.approx(10, abs=3)
    assert got["one"] >= 82
    assert got["two"] + got["three"] >= 82


def test_three_overlapping_gangs_make_progress() -> None:
    tenants = {name: Tenant(gpus, Entitlement(50, 100)) for name, gpus in (("a", (0, 1)), ("b", (1, 2)), ("c", (2, 0)))}
    assert min(steps(3, tenants).values()) >= 20  # no two of them can run at once, so each gets a third at most


def test_a_gang_on_all_gpus_is_not_starved_by_smaller_gangs() -> None:
    tenants = {
        "all": Tenant((0, 1, 2, 3), Entitlement(40, 100)),
        "left": Tenant((0, 1), Entitlement(60, 100)),
        "right": Tenant((2, 3), Entitlement(60, 100)),
    }
    got = steps(4, tenants)
    assert got["all"] == pytest.approx(40, abs=6)


def test_a_gang_keeps_its_limit() -> None:
    got = steps(2, {"gang": Tenant((0, 1), Entitlement(20, 20))})
    assert got["gang"] == pytest.approx(20, abs=3)


def test_a_gang_that_waits_for_a_withheld_gpu_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gang that is stopped in a collective spins. Even without being resumed it does not pay for that."""
    monkeypatch.setattr(gangs, "MAX_END_NS", 0)
    got = steps(2, two_gangs(2, threads=False, crosswise=True))
    assert min(got.values()) >= 0.3 * max(got.values())


def test_the_shares_of_a_group_are_scheduled_together() -> None:
    """The ranks are separate pods, next to another group."""
    request = {"a": 30, "b": 70}
    ranks = {
        f"{name}{gpu}": Tenant((gpu,), Entitlement(request[name], 100), group=name, meets=name)
        for gpu, names in enumerate(("ab", "ba"))
        for name in names
    }
    got = steps(2, ranks)
    assert got["a0"] == got["a1"] == pytest.approx(30, abs=5)
    assert got["b0"] == got["b1"] == pytest.approx(70, abs=10)
    alone = steps(2, {name: dataclasses.replace(tenant, group="") for name, tenant in ranks.items()})
    assert alone["a0"] > 40  # both run at the same time, each on its own GPU, with any request


def test_shares_of_a_group_on_one_gpu_take_turns() -> None:
    got = steps(1, {name: Tenant((0,), Entitlement(50, 100), group="ranks") for name in "ab"})
    assert min(got.values()) >= 40


def test_every_one_of_many_limits_is_kept_and_no_share_waits_for_ever() -> None:
    """Limits end turns at different times, and all gangs wait for GPUs that others have had."""
    tenants = {
        "0": Tenant((3, 2), Entitlement(0, 30, latency=True), threads=False),
        "1": Tenant((0, 3), Entitlement(0, 30)),
        "2": Tenant((0, 1, 2), Entitlement(10, 30, latency=True)),
        "3": Tenant((0, 1), Entitlement(0, 30), threads=False),
        "4": Tenant((0, 1), Entitlement(50, 100, latency=True)),
    }
    got = steps(4, tenants)
    assert got["2"] == pytest.approx(10, abs=5)
    assert got["4"] >= 45
    assert all(got[key] <= 33 for key in "0123")


@st.composite
def nodes(draw: st.DrawFn) -> dict[str, Tenant]:
    left, tenants = dict.fromkeys(range(4), 100), {}
    for number in range(draw(st.integers(2, 6))):
        gpus = tuple(draw(st.permutations(range(4)))[: draw(st.integers(1, 4))])
        request = draw(st.sampled_from([0, 10, 20, 30, 50]))
        request = min(request, *(left[gpu] for gpu in gpus))
        for gpu in gpus:
            left[gpu] -= request
        limit = draw(st.sampled_from([max(30, request), 100, 100]))
        tenants[str(number)] = Tenant(gpus, Entitlement(request, limit, draw(st.booleans())), draw(st.booleans()))
    return tenants


@settings(max_examples=6)
@given(nodes())
def test_every_share_of_any_node_makes_progress(tenants: dict[str, Tenant]) -> None:
    node = VirtualNode(4, tenants)
    node.run(300)
    before = {key: tenant.steps for key, tenant in tenants.items()}
    node.run(1200)
    got = {key: tenant.steps - before[key] for key, tenant in tenants.items()}
    assert all(got[key] > 0 for key, tenant in tenants.items() if tenant.given.request_percent), got
    most = 1200 * MS / KERNEL_NS / 100
    assert all(got[key] <= most * (tenant.given.limit_percent + 12) for key, tenant in tenants.items()), got


WORDS = (contract.MESSAGE_WANT, contract.MESSAGE_CLOSED, contract.MESSAGE_RELEASED)


class Rank(Client):
    """A process on several GPUs that may send anything. A polite one returns a lease when it is revoked."""

    def numbers(self) -> dict[int, int]:
        """Return the numbers of its last leases by GPU."""
        return {gpu: number for kind, gpu, _, number in self.told if kind == contract.MESSAGE_OPEN}


@settings(max_examples=6)
@given(st.integers(0, 1 << 32))
async def test_every_client_is_served_in_the_end_whatever_others_send(seed: int) -> None:
    chance, node, ranks = random.Random(seed), Node(), list[Rank]()

    def come(number: int) -> None:
        gpus = chance.sample(range(3), chance.randint(1, 3))
        grants = tuple(Grant(f"GPU-{gpu}", 1 << 30, 10, chance.choice([30, 100])) for gpu in gpus)
        group = chance.choice(["", "", "default/ranks"])
        ranks.append(Rank(Share(f"p{number}", "default", "p", ("main",), 0, grants, group=group)))
        node.leases.join(ranks[-1])

    def go() -> None:
        node.leases.remove(ranks.pop(chance.randrange(len(ranks))))

    for number in range(60):
        if len(ranks) < 2 or (len(ranks) < 5 and chance.random() < 0.1):
            come(number)
        elif chance.random() < 0.05:
            go()
        rank = chance.choice(ranks)
        member = chance.randrange(len(rank.tenant.grants))
        lease = rank.numbers().get(member, 0) if chance.random() < 0.8 else chance.randrange(100)
        node.says(rank, chance.choice(WORDS), gpu=member, number=lease)
        node.later(chance.choice([0, 0, 1, 7, 40, 150]))
    for _ in range(400):  # until all debts have expired
        for rank in ranks:
            for member, lease in rank.numbers().items():
                node.says(rank, contract.MESSAGE_RELEASED, gpu=member, number=lease)
        node.later(200)
    served = {rank: set[int]() for rank in ranks}
    for _ in range(600):
        if all(len(members) == len(rank.tenant.grants) for rank, members in served.items()):
            break
        for rank in ranks:
            for kind, member, _, number in rank.told:
                if kind == contract.MESSAGE_OPEN:
                    served[rank].add(member)
                elif number:
                    node.says(rank, contract.MESSAGE_RELEASED, gpu=member, number=number)
            rank.told.clear()
            for member in range(len(rank.tenant.grants)):
                node.says(rank, contract.MESSAGE_WANT, gpu=member, number=0)
        node.later(5)
    assert all(len(members) == len(rank.tenant.grants) for rank, members in served.items())
    node.leases.close()
