"""The kinds of isolation that a request may get: the table of `auto` row by row, explicit wishes, and their limits."""

from __future__ import annotations

import dataclasses

import pytest

from gpushare import errors, gpu_capacity, isolation, ledger, placement, request, resizing
from gpushare.allocation import GivenShare, Isolation, PodRef
from gpushare.gpunode import GpuNode
from gpushare.isolation import LEASES
from gpushare.modes.hardware_gpu import MAX_MPS_CLIENTS
from gpushare.placement import NodeView, Placement
from gpushare.placement.fleet import Fleet
from gpushare.refusal import Refusal, Rejected
from gpushare.request import DEFAULT_ISOLATIONS, Request
from tests import builders

BOTH = (Isolation.ARBITER, Isolation.MPS)
GROUP = {"group": "red", "group_size": "2"}
# By row of the table: a pod that gets leases for that reason alone.
ROWS = {
    "give precedence to latency": {"request": "0.5", "limit": "0.5", "latency": "true"},
    "several GPUs": {"request": "0.5", "limit": "0.5", "gpus": "2"},
    "pods of a group": {"request": "0.5", "limit": "0.5", **GROUP},
    "whole GPU's compute": {"request": "1"},
    "clients never yield": {"memory": "8Gi"},
    "leases guarantee the request": {"request": "0.5"},
    "containers have a common limit": {"request": "0.5", "limit": "0.5", "container": "main,side"},
}
BESIDE = [
    {"request": "0.5", "limit": "0.5"},
    {"request": "0.3", "limit": "0.3", "memory": "20Gi"},
    {"request.main": "0.5", "limit.main": "0.5", "request.side": "0.3", "limit.side": "0.3"},
]


def asked(**annotations: str) -> Request:
    return request.parse(builders.pod(containers=("main", "side"), **annotations))


def fleet(*nodes: GpuNode) -> Fleet:
    made = Fleet()
    for view in builders.views(*nodes):
        made.update(view)
    return made


@pytest.mark.parametrize("reason", ROWS)
def test_each_row_of_the_table_gives_leases_for_its_reason(reason: str) -> None:
    pod = asked(isolation="auto", **ROWS[reason])
    assert [rule.why for rule in LEASES if rule.applies(pod)] == [isolation.choices(pod)[0].why]
    assert isolation.kinds(pod) == (Isolation.ARBITER,)
    assert reason in isolation.choices(pod)[0].why


def test_every_row_has_a_pod() -> None:
    assert len(ROWS) == len(LEASES)


@pytest.mark.parametrize("annotations", BESIDE)
def test_other_pods_are_tried_as_mps_clients_first(annotations: dict[str, str]) -> None:
    assert isolation.kinds(asked(isolation="auto", **annotations)) == (Isolation.MPS, Isolation.ARBITER)
    assert isolation.kinds(asked(**annotations), "auto") == (Isolation.MPS, Isolation.ARBITER)


@pytest.mark.parametrize("annotations", [*ROWS.values(), *BESIDE])
def test_auto_gives_no_kind_without_a_memory_limit(annotations: dict[str, str]) -> None:
    assert not {Isolation.NONE, Isolation.MIG} & {*isolation.kinds(asked(isolation="auto", **annotations))}


@pytest.mark.parametrize("default", DEFAULT_ISOLATIONS)
@pytest.mark.parametrize("kind", Isolation)
def test_explicit_wish_is_never_overridden(kind: Isolation, default: str) -> None:
    several = (ROWS["pods of a group"], BESIDE[-1])
    for named in (
        ROWS["whole GPU's compute"],
        ROWS["clients never yield"],
        *(() if kind is Isolation.MIG else several),
        *BESIDE[:-1],
    ):
        ((given, why),) = isolation.choices(asked(isolation=kind.value, **named), default)
        assert (given, why) == (kind, "gpushare.io/isolation asks for it")


def test_pods_that_name_none_get_the_default_of_the_cluster() -> None:
    assert isolation.choices(asked(request="0.5")) == ((Isolation.ARBITER, "it is the cluster's default"),)
    assert isolation.choices(asked(request="0.5"), "mps") == ((Isolation.MPS, "it is the cluster's default"),)


@pytest.mark.parametrize("reason", ["give precedence to latency", "several GPUs"])
def test_default_that_cannot_serve_a_pod_gives_it_leases(reason: str) -> None:
    ((kind, why),) = isolation.choices(asked(**ROWS[reason]), "mps")
    assert kind is Isolation.ARBITER
    assert reason in why


@pytest.mark.parametrize(
    ("annotations", "says"),
    [
        (
            {"request": "0.5", "isolation": "mps", "latency": "true"},
            'gpushare.io/isolation "mps" has no turns in which a pod with gpushare.io/latency could go first: '
            'remove one, or write "auto"',
        ),
        (
            {"request": "0.5", "isolation": "mps", "gpus": "2"},
            'gpushare.io/isolation "mps" cannot be combined with gpushare.io/gpus, as a process can use one MPS daemon: '
            'write "arbiter", or use 1 GPU',
        ),
        (
            {"request": "0.5", "isolation": "mig", "gpus.main": "2"},
            'gpushare.io/isolation "mig" cannot be combined with gpushare.io/gpus, as a process can use one MIG device: '
            'write "arbiter", or use 1 GPU',
        ),
        (
            {"request": "0.5", "isolation": "mps", "limit": "0.4"},
            'gpushare.io/limit "0.4" is less than the request: write 0.5 to 1, or omit it for 1',
        ),
        (
            {"request": "0.5", "isolation": "MPS"},
            'gpushare.io/isolation "MPS" is unknown: write one of auto, arbiter, mps, mig, none',
        ),
    ],
)
def test_contradictions_are_refused_in_one_sentence(annotations: dict[str, str], says: str) -> None:
    with pytest.raises(errors.RequestError) as refused:
        asked(**annotations)
    assert str(refused.value) == says


def place(pod: Request, *nodes: GpuNode, default: str = "arbiter") -> Placement | Refusal:
    engine = fleet(*nodes)
    answer = isolation.place(pod, default, engine.place)
    assert isolation.place(pod, default, engine.place, offers=engine.offers) == answer
    alone = isolation.place(pod, default, lambda tried: placement.place(builders.views(*nodes), tried))
    assert str(answer) == str(alone) if isinstance(answer, Refusal) else isinstance(alone, Placement)
    return answer


def with_shares(node: GpuNode, *kinds: str, request: int = 10) -> GpuNode:
    """Return the node with a share of each of these kinds on its first GPU."""
    for number, kind in enumerate(kinds):
        entry = builders.allocation(
            f"a{number}", request=request, memory_gib=1, pod_name=f"pod-{number}", isolation=Isolation(kind)
        )
        node = ledger.reserve(node, entry)
    return node


def test_first_kind_that_fits_anywhere_is_given() -> None:
    pod = asked(isolation="auto", request="0.5", limit="0.5")
    leased = with_shares(builders.node("node-a", gpus=1, isolations=BOTH), "arbiter")
    free = builders.node("node-b", gpus=1, isolations=BOTH)
    given = place(pod, leased, free)
    assert isinstance(given, Placement)
    assert (given.node, given.isolation) == ("node-b", Isolation.MPS)
    entry = given.allocation(pod, allocation_id="new", pod=PodRef("default"), reserved_until=None)
    assert entry.labels.isolation is Isolation.MPS
    given = place(pod, leased)
    assert isinstance(given, Placement)
    assert given.isolation is Isolation.ARBITER
    assert isolation.why(pod, "arbiter", given.isolation) == "no GPU that offers MPS has room for it"


def test_a_kind_that_no_gpu_offers_is_not_tried() -> None:
    pod, engine = asked(isolation="auto", request="0.5", limit="0.5"), fleet(builders.node("node-a", gpus=1))
    tried: list[Isolation] = []

    def attempt(variant: Request) -> Placement | Refusal:
        tried.append(variant.constraints.isolation)
        return engine.place(variant)

    isolation.place(pod, "arbiter", attempt, offers=engine.offers)
    engine.update(NodeView.from_node(builders.node("node-b", gpus=1, isolations=BOTH)))
    isolation.place(pod, "arbiter", attempt, offers=engine.offers)
    engine.remove("node-b")
    isolation.place(pod, "arbiter", attempt, offers=engine.offers)
    assert tried == [Isolation.ARBITER, Isolation.MPS, Isolation.ARBITER]
    isolation.place(pod, "arbiter", attempt, offers=lambda _: False)
    assert tried[3:] == [Isolation.MPS, Isolation.ARBITER]


def test_refusal_is_of_the_kind_that_is_nearest_to_fitting() -> None:
    pod = asked(isolation="auto", request="0.95", limit="0.95")
    refused = place(pod, with_shares(builders.node(gpus=1, isolations=BOTH), "mps"))
    assert "node-a/0 has 0.9 of its compute free" in str(refused)
    refused = place(pod, with_shares(builders.node(gpus=1), "arbiter"))
    assert "node-a/0 has 0.9 of its compute free" in str(refused)


def test_refusal_is_final_only_if_that_of_every_kind_is() -> None:
    final, waits = Refusal("never", (Rejected("n", 0, "size", "", 7.0),), lasts=True), Refusal("later")
    pod = asked(isolation="auto", request="0.5", limit="0.5")
    for refusals in ((final, waits), (waits, final)):
        assert (
            isolation.place(
                pod, "arbiter", dict(zip(isolation.variants(pod, "arbiter"), refusals, strict=True)).__getitem__
            )
            is waits
        )


def test_shares_of_another_kind_are_refused_with_who_is_there() -> None:
    node = with_shares(builders.node(gpus=1, isolations=BOTH), "mps")
    assert str(place(asked(request="0.1"), node)).endswith(
        "1 used by pods with another isolation; nearest: node-a/0 is shared by default/pod-0, which has isolation mps, "
        "not arbiter"
    )


@pytest.mark.parametrize("kind", ["mps", "mig", "none"])
def test_gpu_that_does_not_offer_a_kind_never_fits_it(kind: str) -> None:
    assert str(place(asked(request="0.1", isolation=kind), builders.node(gpus=1))) == (
        "no GPU fits 0.1 GPU with 10% of the memory: of 1 GPU on 1 node, 1 without that isolation; nearest: node-a/0 "
        f"takes no shares with isolation {kind}, only with arbiter; none of these can ever fit"
    )


def test_a_daemon_gets_no_49th_client() -> None:
    node = with_shares(builders.node(gpus=1, isolations=BOTH), *["mps"] * (MAX_MPS_CLIENTS - 1), request=1)
    pod = asked(request="0.02", memory="1Gi", isolation="mps")
    given = place(pod, node)
    assert isinstance(given, Placement)
    full = ledger.reserve(
        node, given.allocation(pod, allocation_id="last", pod=PodRef("default", "last"), reserved_until=None)
    )
    assert str(place(pod, full)).endswith(
        "1 with as many pods as an MPS daemon takes; nearest: node-a/0 is shared by 48 pods, each with a process or "
        "more, and an MPS daemon takes at most 48 processes"
    )
    leased = with_shares(builders.node(gpus=1), *["arbiter"] * (MAX_MPS_CLIENTS + 1), request=1)
    assert isinstance(place(asked(request="0.02", memory="1Gi"), leased), Placement)


def test_each_partition_gets_one_share_whose_request_is_for_it() -> None:
    """So no sum of rounded requests exceeds the GPU, and the ledger needs no other rule."""
    node = builders.node(gpus=1, isolations=BOTH, sm_partitions=4)
    for request_percent, fits in ((20, False), (21, True), (25, True), (26, False), (100, False)):
        pod = asked(request=str(request_percent / 100), memory="1Gi", isolation="mps")
        assert isinstance(place(pod, node), Placement) is fits, request_percent
    assert str(place(asked(request="0.5", memory="1Gi", isolation="mps"), node)).endswith(
        "1 with SM partitions for other requests; nearest: node-a/0 has 4 equal SM partitions, which take requests of "
        "0.21 to 0.25; none of these can ever fit"
    )
    assert isinstance(place(asked(request="0", memory="1Gi", isolation="mps"), node), Refusal)
    assert isinstance(place(asked(request="0.5", memory="1Gi"), node), Placement), "leases need no partition"
    least = asked(request="0.21", memory="1Gi", isolation="mps")
    full = with_shares(node, *["mps"] * 4, request=21)
    assert "node-a/0 has 0.16 of its compute free" in str(place(least, full))


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 12, 25])
def test_requests_for_one_of_n_partitions_are_too_large_for_one_more(count: int) -> None:
    node = builders.node(gpus=1, isolations=BOTH, sm_partitions=count)
    fitting = [
        percent
        for percent in range(1, 101)
        if isinstance(place(asked(request=str(percent / 100), memory="1Gi", isolation="mps"), node), Placement)
    ]
    assert fitting
    assert max(fitting) * count <= 100 < min(fitting) * (count + 1)


def test_request_of_a_share_in_a_partition_stays() -> None:
    node = with_shares(builders.node(gpus=1, isolations=BOTH, sm_partitions=4), "mps", request=25)
    changed = request.parse(builders.pod(isolation="mps", request="0.22", limit="1", memory="1Gi"))
    with pytest.raises(errors.LedgerError, match=r"its request is 0\.25, and its SM partition cannot change while it"):
        resizing.asked(changed, node.allocations[0], node)


def test_ledger_rejects_two_kinds_on_one_gpu() -> None:
    node = with_shares(builders.node(gpus=1, isolations=BOTH), "mps")
    other = builders.allocation("b", request=10, memory_gib=1)
    with pytest.raises(errors.LedgerError, match="node-a/0 cannot have shares with isolation arbiter and mps at once"):
        ledger.reserve(node, other)
    both = dataclasses.replace(node, allocations=(*node.allocations, other))
    assert ledger.violations(both) == [
        "node-a/0 (GPU-node-a-0) has shares with isolation arbiter and mps, held by default/pod-0, default/trainer"
    ]


def test_ledger_rejects_more_mps_shares_than_partitions() -> None:
    node = with_shares(builders.node(gpus=1, isolations=BOTH, sm_partitions=2), *["mps"] * 2, request=10)
    other = builders.allocation("b", request=10, memory_gib=1, isolation=Isolation.MPS)
    with pytest.raises(errors.LedgerError, match="node-a/0 has 2 SM partitions for 3 shares"):
        ledger.reserve(node, other)
    assert ledger.violations(node) == []
    assert ledger.violations(dataclasses.replace(node, allocations=(*node.allocations, other))) == [
        "node-a/0 (GPU-node-a-0) has 2 SM partitions for 3 shares, held by default/pod-0, default/pod-1, "
        "default/trainer"
    ]


def test_limit_of_an_mps_client_stays_and_its_memory_may_change() -> None:
    (entry,) = with_shares(builders.node(gpus=1, isolations=BOTH), "mps").allocations
    node = dataclasses.replace(builders.node(gpus=1, isolations=BOTH), allocations=(entry,))
    (share,) = entry.shares

    def wanted(**annotations: str) -> tuple[GivenShare, ...]:
        return resizing.asked(request.parse(builders.pod(isolation="mps", **annotations)), entry, node)

    assert wanted(request="0.2", memory="4Gi")[0].memory_bytes == 4 * builders.GIB
    with pytest.raises(errors.LedgerError) as refused:
        wanted(request="0.1", limit="0.5", memory="1Gi")
    assert str(refused.value) == (
        "its limit is 1, and the limit of an MPS client cannot change while it runs: set gpushare.io/limit to 1, or "
        "delete and recreate the pod"
    )
    leased = dataclasses.replace(entry, labels=builders.allocation().labels)
    shrunk = request.parse(builders.pod(request="0.1", limit="0.5", memory="1Gi"))
    assert resizing.asked(shrunk, leased, node) == (dataclasses.replace(share, limit_percent=50),)


def test_what_is_free_next_to_mps_clients_is_stranded_for_pods_that_get_leases() -> None:
    node = with_shares(builders.node(gpus=1, isolations=BOTH), "mps")
    (gpu,), used = node.gpus, ledger.use(node)[node.gpus[0].uuid]
    free, stranded = gpu_capacity.stranded(gpu, used)
    assert free == stranded > 0.9
    assert gpu_capacity.largest(gpu, used) is None
    for default in ("mps", "auto"):
        kinds = isolation.default_kinds(default)
        assert gpu_capacity.largest(gpu, used, kinds) == (90, 79 * builders.GIB)
        assert gpu_capacity.stranded(gpu, used, kinds=kinds)[1] < free
    only_mps = builders.gpu(isolations=(Isolation.MPS,))
    assert gpu_capacity.largest(only_mps, ledger.NOTHING) is None
