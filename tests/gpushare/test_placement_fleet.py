from collections.abc import Iterable

import pytest

from gpushare import ledger, placement, request
from gpushare.allocation import PodRef
from gpushare.gpunode import GpuNode
from gpushare.mix import Host
from gpushare.placement import NodeView, Placement, explanation
from gpushare.placement.fleet import Fleet
from gpushare.placement.grid import Room
from gpushare.refusal import Refusal
from tests import builders
from tests.builders import GIB


def fleet_of(*nodes: GpuNode, rooms: Iterable[Room | None] = ()) -> Fleet:
    fleet = Fleet()
    node_rooms = list(rooms) or [None] * len(nodes)
    for node, room in zip(nodes, node_rooms, strict=True):
        fleet.update(NodeView.from_node(node), room=room)
    return fleet


def place(fleet: Fleet, host: Host | None = None, **annotations: str) -> Placement | Refusal:
    return fleet.place(request.parse(builders.pod(**annotations)), host=host or Host())


def fill(fleet: Fleet, count: int, **annotations: str) -> list[str]:
    """Place equal pods one after another; return their UUIDs."""
    got: list[str] = []
    views = {view.node.name: view.node for view in fleet.views()}
    for number in range(count):
        asked = request.parse(builders.pod(**annotations))
        pick = fleet.place(asked)
        assert isinstance(pick, Placement), pick
        entry = pick.allocation(asked, allocation_id=f"p{number}", pod=builders.PodRef("default"), reserved_until=None)
        views[pick.node] = ledger.reserve(views[pick.node], entry)
        fleet.update(NodeView.from_node(views[pick.node]))
        got += entry.gpu_uuids
    return got


def test_sixteen_halves_fill_eight_gpus() -> None:
    got = fill(fleet_of(builders.node(gpus=8)), 16, request="0.5")
    assert sorted(got) == sorted([f"GPU-node-a-{index}" for index in range(8)] * 2)


def test_third_pod_of_12_gib_on_a_24_gib_gpu_waits() -> None:
    fleet = fleet_of(builders.node(gpus=1, memory_gib=24))
    fill(fleet, 2, memory="12Gi")
    assert str(place(fleet, memory="12Gi")) == (
        "no GPU fits idle compute with 12Gi: of 1 GPU on 1 node, 1 with too little memory free; nearest: node-a/0 has 0 of 24Gi free"
    )


def test_partly_used_gpu_is_filled_before_another() -> None:
    assert len(set(fill(fleet_of(builders.node("node-a"), builders.node("node-b")), 4, request="0.25"))) == 1


def test_spread_uses_every_gpu_first() -> None:
    assert len(set(fill(fleet_of(builders.node()), 4, request="0.25", policy="spread"))) == 4


def test_empty_fleet_has_no_gpu() -> None:
    assert str(place(Fleet(), request="0.5")) == (
        "no GPU fits 0.5 GPU with 50% of the memory: gpushare does not know any GPU; is its agent running on the GPU nodes?"
    )


def test_node_without_cpu_is_rejected_with_the_reason() -> None:
    small, large = Room(2000, 64 * GIB), Room(16_000, 64 * GIB)
    fleet = fleet_of(builders.node("node-a"), builders.node("node-b"), rooms=(small, large))
    answer = place(fleet, Host(8000, 1), request="0.5")
    assert isinstance(answer, Placement)
    assert answer.node == "node-b"
    fleet.update(NodeView.from_node(builders.node("node-b")), room=Room(1500, 64 * GIB))
    assert str(place(fleet, Host(8000, 1), request="0.5")).endswith(
        "of 8 GPUs on 2 nodes, 2 nodes that cannot take the pod; nearest: node-a has 2 CPUs free, 8 are needed"
    )


def test_node_without_host_memory_is_rejected_with_the_reason() -> None:
    fleet = fleet_of(builders.node(), rooms=(Room(64_000, 4 * GIB),))
    assert str(place(fleet, Host(1000, 8 * GIB), request="0.5")).endswith(
        "nearest: node-a has 4Gi of host memory free, 8Gi are needed"
    )


def test_update_without_room_keeps_the_known_room() -> None:
    fleet = fleet_of(builders.node(), rooms=(Room(2000, 64 * GIB),))
    fleet.update(NodeView.from_node(builders.node()))
    assert isinstance(place(fleet, Host(8000), request="0.5"), Refusal)


def test_pod_without_cpu_request_fits_on_an_overcommitted_node() -> None:
    assert isinstance(place(fleet_of(builders.node(), rooms=(Room(-500, -1),)), request="0.5"), Placement)


def test_removed_node_is_not_chosen_and_its_slot_is_reused() -> None:
    fleet = fleet_of(builders.node("node-a"), builders.node("node-b", gpus=8))
    fleet.remove("node-a")
    fleet.remove("node-a")
    fleet.update(NodeView.from_node(builders.node("node-c", gpus=2)))
    assert len(fleet) == 2
    answer = place(fleet, gpus="8")
    assert isinstance(answer, Placement)
    assert answer.node == "node-b"
    assert "of 10 GPUs on 2 nodes" in str(place(fleet, gpus="9"))


def test_removed_node_leaves_no_trace_in_the_costs() -> None:
    learned = builders.mix([request.parse(builders.pod(gpus=gpus)) for gpus in ("8", "8", "4", "1")])
    small = [builders.node(f"small-{number}", gpus=4) for number in range(2)]
    other = builders.node("other", gpus=8, model="NVIDIA L4")
    before, fresh = fleet_of(builders.node("large", gpus=8), *small, other), fleet_of(*small, other)
    for fleet in (before, fresh):
        fleet.learn(learned)
    before.lowest(request.parse(builders.pod(request="0.5")))
    before.remove("large")
    for asked in (builders.pod(request="0.5"), builders.pod(gpus="4"), builders.pod(gpus="8")):
        assert before.lowest(request.parse(asked)) == fresh.lowest(request.parse(asked))


def test_vacancies_keep_the_tables_of_their_fleet() -> None:
    node = builders.node("node-a", gpus=8)
    fleet = fleet_of(node, builders.node("node-b", gpus=4))
    fleet.learn(builders.mix([request.parse(builders.pod(gpus=gpus)) for gpus in ("8", "8", "4", "1")]))
    prices = fleet.prices()
    vacancies = fleet.vacancies(prices)
    slot = vacancies.put("mover", NodeView.from_node(node), Room())
    asked = request.parse(builders.pod(request="0.5"))
    (path,) = vacancies.chains(
        [slot],
        [0],
        [0],
        shapes=[[(asked, Host())]],
        values=fleet.values(["node-a"], prices) - 1,
        lowest=[0.0],
        waiting={0: 5.0},
        most=1,
    )
    assert path[1] == [0]


def test_node_with_more_gpus_than_any_other_can_be_added() -> None:
    fleet = fleet_of(*(builders.node(f"node-{number}", gpus=1) for number in range(4)))
    assert isinstance(place(fleet, request="0.5"), Placement)
    fleet.update(NodeView.from_node(builders.node("large", gpus=8)))
    answer = place(fleet, gpus="8")
    assert isinstance(answer, Placement)
    assert answer.node == "large"


def test_node_without_gpus_is_removed() -> None:
    fleet = fleet_of(builders.node("node-a"))
    fleet.update(NodeView.from_node(GpuNode("node-a")))
    assert not list(fleet.views())


def test_fit_node_is_found_behind_many_unfit_ones() -> None:
    fleet = fleet_of(*(builders.node(f"node-{number:02}") for number in range(40)))
    asked = request.parse(builders.pod(request="0.5"))
    answer = fleet.place(asked, unfit=lambda name: None if name == "node-37" else "is not ready")
    assert isinstance(answer, Placement)
    assert answer.node == "node-37"


def test_cpu_heavy_pods_go_where_cpu_is_plentiful() -> None:
    fleet = fleet_of(
        builders.node("poor", gpus=4), builders.node("rich", gpus=4), rooms=(Room(16_000, 1e15), Room(256_000, 1e15))
    )
    whole = request.parse(builders.pod(request="1"))
    fleet.learn(builders.mix([whole] * 80, [Host(cpus * 1000) for cpus in (1, 16) * 40]))
    heavy, light = place(fleet, Host(16_000), request="1"), place(fleet, Host(1000), request="1")
    assert isinstance(heavy, Placement)
    assert isinstance(light, Placement)
    assert (heavy.node, light.node) == ("rich", "poor")


def test_gpu_kind_that_other_pods_name_is_avoided() -> None:
    l4 = {"model": "NVIDIA L4", "compute_capability": (8, 9)}
    fleet = fleet_of(builders.node("a-node", gpus=1, **l4), *(builders.node(f"node-{n}", gpus=8) for n in range(3)))
    asked = [request.parse(builders.pod(request="1", **named)) for named in ({"model": "*L4*"}, {})]
    fleet.learn(builders.mix(asked * 40))
    answer = place(fleet, request="1")
    assert isinstance(answer, Placement)
    assert answer.node != "a-node"


def test_share_that_needs_all_memory_of_a_plentiful_node_spares_the_scarce_kind() -> None:
    l4 = {"model": "NVIDIA L4", "compute_capability": (8, 9)}
    small, named = (request.parse(builders.pod(**asked)) for asked in ({"request": "0.25"}, {"gpus": "8"}))
    nodes = [
        *(builders.node(f"l4-{n}", gpus=1, **l4) for n in range(12)),
        *(builders.node(f"a-{n}", gpus=8) for n in range(4)),
    ]
    nodes[-1] = ledger.reserve(nodes[-1], builders.allocation("half", "GPU-a-3-0", request=50, memory_gib=40))
    fleet = fleet_of(*nodes, rooms=[Room(32_000 * len(node.gpus), 32 * GIB * len(node.gpus)) for node in nodes])
    fleet.learn(builders.mix([named, small] * 40, [Host(8000, 64 * GIB), Host(1000, 32 * GIB)] * 40))
    answer = place(fleet, Host(1000, 32 * GIB), request="0.25")
    assert isinstance(answer, Placement)
    assert answer.node == "l4-0"


def test_rare_gpus_are_avoided_while_the_mix_is_unknown() -> None:
    l4 = {"model": "NVIDIA L4", "compute_capability": (8, 9)}
    fleet = fleet_of(builders.node("a-node", gpus=1, **l4), *(builders.node(f"node-{n}", gpus=8) for n in range(3)))
    answer, named = place(fleet, request="0.5"), place(fleet, request="0.5", model="*L4*")
    assert isinstance(answer, Placement)
    assert isinstance(named, Placement)
    assert (answer.node, named.node) == ("node-0", "a-node")
    fleet.learn(builders.mix([request.parse(builders.pod(request="0.5"))] * 5000))
    answer = place(fleet, request="0.5")
    assert isinstance(answer, Placement)
    assert answer.node == "a-node"  # no known pod names a model, so the fuller node wins


def test_first_pods_take_small_nodes_and_leave_larger_ones_whole_although_small_ones_are_rare() -> None:
    t4 = {"model": "Tesla T4", "compute_capability": (7, 5)}
    nodes = [builders.node(f"a-four-{number}", gpus=4) for number in range(7)]
    answer = place(fleet_of(*nodes, *(builders.node(f"b-two-{number}", gpus=2, **t4) for number in range(5))), gpus="2")
    assert isinstance(answer, Placement)
    assert answer.node == "b-two-0"


def test_first_pods_leave_large_nodes_whole_despite_large_cpu_requests() -> None:
    nodes = [
        *(builders.node(f"large-{number}", gpus=8) for number in range(6)),
        *(builders.node(f"small-{number:02}", gpus=2) for number in range(12)),
    ]
    cpu = {node.name: 32_000 * 2 if len(node.gpus) == 2 else 12_000 * 8 for node in nodes}
    fleet = fleet_of(*nodes, rooms=[Room(cpu[node.name], 1e15) for node in nodes])
    small, host = request.parse(builders.pod(request="0.1")), Host(2000)
    fleet.learn(builders.mix([small] * 50, [host] * 50))
    known = {node.name: node for node in nodes}
    for number in range(60):
        answer = fleet.place(small, host=host)
        assert isinstance(answer, Placement)
        assert answer.node.startswith("small-")
        entry = answer.allocation(small, allocation_id=str(number), pod=PodRef("default"), reserved_until=None)
        known[answer.node] = ledger.reserve(known[answer.node], entry)
        cpu[answer.node] -= host.cpu_milli
        fleet.update(NodeView.from_node(known[answer.node]), room=Room(cpu[answer.node], 1e15))


def test_last_whole_node_is_left_to_pods_that_need_it() -> None:
    fleet = fleet_of(builders.node("a-whole", gpus=8), builders.node("b-half", gpus=4))
    fleet.learn(builders.mix([request.parse(builders.pod(gpus="8")), request.parse(builders.pod(request="1"))] * 40))
    answer = place(fleet, request="1")
    assert isinstance(answer, Placement)
    assert answer.node == "b-half"


@pytest.mark.parametrize("huge", [2**62, 2**70])
def test_invalid_hand_edited_node_is_no_error(huge: int) -> None:
    entry = builders.allocation("a", request=10**30, memory_gib=huge)
    node = GpuNode("node-a", gpus=(builders.gpu(0), builders.gpu(1)), allocations=(entry,))
    answer = place(fleet_of(node), request="0.5")
    assert isinstance(answer, Placement)
    assert answer.shares[0].gpu_uuids == ("GPU-node-a-1",)


def test_place_on_uses_the_node_as_given() -> None:
    fleet = fleet_of(builders.node("node-a"))
    full = ledger.reserve(
        builders.node("node-a", gpus=1), builders.allocation("a", "GPU-node-a-0", request=80, memory_gib=1)
    )
    asked = request.parse(builders.pod(request="0.5"))
    assert str(fleet.place_on(NodeView.from_node(full), asked)).endswith(
        "nearest: node-a/0 has 0.2 of its compute free"
    )
    assert isinstance(fleet.place_on(NodeView.from_node(builders.node("node-z")), asked), Placement)
    assert isinstance(fleet.place(asked), Placement)


def test_empty_nodes_are_spared_while_the_mix_is_unknown_large_ones_most() -> None:
    t4 = {"model": "Tesla T4", "compute_capability": (7, 5)}
    nodes = [builders.node(f"a-large-{number}", gpus=8) for number in range(3)]
    fleet = fleet_of(*nodes, *(builders.node(f"b-small-{number}", gpus=2, **t4) for number in range(3)))
    answer = place(fleet, request="0.1")
    assert isinstance(answer, Placement)
    assert answer.node == "b-small-0"
    all_of_a_node = place(fleet_of(*nodes, builders.node("b-small", gpus=4)), gpus="4")
    assert isinstance(all_of_a_node, Placement)
    assert all_of_a_node.node == "b-small"


def test_refusal_names_the_nearest_unfit_node() -> None:
    """A node whose GPUs would fit comes first, then the one that lacks least."""
    names = ("node-a", "node-b", "node-c", "node-d")
    held = builders.allocation("a1", "GPU-node-a-0", request=100)
    full = ledger.reserve(builders.node("node-a", gpus=1), held)
    nodes = (full, *(builders.node(name, gpus=1) for name in names[1:]))
    rooms = [Room(cpu_milli, 64 * GIB) for cpu_milli in (7000, 1000, 6000, 2000)]
    assert str(place(fleet_of(*nodes, rooms=rooms), Host(8000, 1), request="0.5")).endswith(
        "4 nodes that cannot take the pod; nearest: node-c has 6 CPUs free, 8 are needed"
    )
    asked = request.parse(builders.pod(request="0.5"))
    for answer in (
        fleet_of(*nodes).place(asked, unfit=lambda _: "is not ready"),
        placement.place(map(NodeView.from_node, nodes), asked, unfit=lambda _: "is not ready"),
    ):
        assert str(answer).endswith("nearest: node-b is not ready")


def test_refusal_names_the_node_with_the_most_fitting_gpus() -> None:
    nodes = [builders.node(name, gpus=count) for name, count in (("node-a", 1), ("node-b", 3), ("node-c", 2))]
    asked = request.parse(builders.pod(gpus="4"))
    for answer in (fleet_of(*nodes).place(asked), placement.place(map(NodeView.from_node, nodes), asked)):
        assert str(answer).endswith(
            "nearest: node-b has 3 GPUs that fit at once, 4 are needed; "
            f"no node has more than 3 GPUs; {explanation.NEVER}"
        )


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("is not ready", "1 node that cannot take the pod; nearest: node-a is not ready"),
        (None, "no rule rejects any"),
    ],
)
def test_refusal_has_a_sentence_though_no_misfit_is_known(reason: str | None, said: str) -> None:
    fleet, reasons = Fleet(), iter(["is not ready"])
    fleet.update(NodeView.from_node(builders.node(gpus=1)), row=0)
    refusal = fleet.place(
        request.parse(builders.pod(request="0.5")), unfit=lambda _: next(reasons, reason), misfits=lambda: 0
    )
    assert str(refusal) == f"no GPU fits 0.5 GPU with 50% of the memory: of 1 GPU on 1 node, {said}"
    assert isinstance(refusal, Refusal)
    assert not refusal.lasts
