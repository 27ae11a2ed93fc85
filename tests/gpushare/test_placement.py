import dataclasses

import pytest

from gpushare import contract, ledger, placement, request
from gpushare.gpunode import Condition, GpuNode, Mode
from gpushare.placement import NodeView, Placement
from gpushare.refusal import Refusal
from tests import builders


def place(*nodes: GpuNode, policy: str = "fragmentation", **annotations: str) -> Placement | Refusal:
    return placement.place(builders.views(*nodes), request.parse(builders.pod(**annotations)), policy=policy)


def fill(views: dict[str, NodeView], count: int, **annotations: str) -> list[str]:
    """Place `count` equal pods one after another; return their UUIDs."""
    got = []
    for number in range(count):
        asked = request.parse(builders.pod(**annotations))
        pick = placement.place(views.values(), asked)
        assert isinstance(pick, Placement), pick
        entry = pick.allocation(asked, allocation_id=f"p{number}", pod=builders.PodRef("default"), reserved_until=None)
        views[pick.node] = NodeView.from_node(ledger.reserve(views[pick.node].node, entry))
        got += entry.gpu_uuids
    return got


def test_sixteen_halves_fill_eight_gpus() -> None:
    got = fill({"node-a": NodeView.from_node(builders.node(gpus=8))}, 16, request="0.5")
    assert sorted(got) == sorted([f"GPU-node-a-{index}" for index in range(8)] * 2)


def test_third_pod_of_12_gib_on_a_24_gib_gpu_waits() -> None:
    views = {"node-a": NodeView.from_node(builders.node(gpus=1, memory_gib=24))}
    fill(views, 2, memory="12Gi")
    refusal = placement.place(views.values(), request.parse(builders.pod(memory="12Gi")))
    assert isinstance(refusal, Refusal)
    assert refusal.reason == (
        "no GPU fits idle compute with 12Gi: of 1 GPU on 1 node, 1 with too little memory free; nearest: node-a/0 has 0 of 24Gi free"
    )


def test_node_that_injects_no_devices_gets_no_pods() -> None:
    said = Condition(
        contract.CONDITION_DEVICES_INJECTED, "False", contract.REASON_NOTHING_INJECTS, "no runtime injects"
    )
    refusing = dataclasses.replace(builders.node("node-a", gpus=1), conditions=(said,))
    refusal = place(refusing, request="0.5")
    assert isinstance(refusal, Refusal)
    assert refusal.reason.endswith(
        "of 1 GPU on 1 node, 1 on a node that takes no new pods; nearest: node-a/0 is on a node that takes no new pods: no runtime injects"
    )
    chosen = place(refusing, builders.node("node-b", gpus=1), request="0.5")
    assert isinstance(chosen, Placement)
    assert chosen.node == "node-b"
    # If some containers lack devices, the node must fix that itself: other containers get theirs.
    missing = dataclasses.replace(said, reason="DevicesMissing")
    assert isinstance(place(dataclasses.replace(refusing, conditions=(missing,)), request="0.5"), Placement)


def test_node_with_a_stopped_agent_gets_no_pods() -> None:
    condition = Condition(contract.CONDITION_READY, "False", contract.REASON_AGENT_STOPPED, "its agent has stopped")
    refusal = place(dataclasses.replace(builders.node("node-a", gpus=1), conditions=(condition,)), request="0.5")
    assert isinstance(refusal, Refusal)
    assert refusal.reason.endswith("nearest: node-a/0 is on a node that takes no new pods: its agent has stopped")


def test_default_policy_fills_a_gpu_before_using_another() -> None:
    views = {"node-a": NodeView.from_node(builders.node())}
    assert len(set(fill(views, 4, request="0.25"))) == 1


def test_spread_uses_every_gpu_first() -> None:
    views = {"node-a": NodeView.from_node(builders.node())}
    assert len(set(fill(views, 4, request="0.25", policy="spread"))) == 4


def test_several_gpus_are_distinct_and_on_one_node() -> None:
    answer = place(builders.node("node-a", gpus=2), builders.node("node-b", gpus=4), gpus="3")
    assert isinstance(answer, Placement)
    assert answer.node == "node-b"
    assert len(set(answer.shares[0].gpu_uuids)) == 3


def test_memory_percentage_is_of_the_chosen_gpu() -> None:
    answer = place(builders.node(memory_gib=24), request="0.5")
    assert isinstance(answer, Placement)
    assert answer.shares[0].memory_bytes == 12 * builders.GIB


def test_share_on_several_gpus_is_limited_by_the_smallest() -> None:
    # A container has one share: with two it could use only the GPUs of the first.
    mixed = GpuNode("node-a", gpus=(builders.gpu(0, memory_gib=80), builders.gpu(1, memory_gib=40)))
    placed = place(mixed, request="0.5", gpus="2", memory="25%")
    assert isinstance(placed, Placement)
    (share,) = placed.shares
    assert share.gpu_uuids == tuple(gpu.uuid for gpu in mixed.gpus)
    assert share.memory_bytes == 10 * builders.GIB


@pytest.mark.parametrize(
    ("annotations", "index"),
    [
        ({"model": "*l4*"}, 1),
        ({"model": "*H100*, *L4"}, 1),
        ({"model": "L4"}, 1),
        ({"model": "NVIDIA L4"}, 1),
        ({"model": "L*"}, 1),
        ({"model": "A10, H100, a100"}, 0),
        ({"model": "A100-SXM4-80GB"}, 0),
        ({"model": "NVIDIA A100-SXM4-80GB"}, 0),
        ({"min_compute_capability": "8.9"}, 1),
        ({"min_memory": "40Gi"}, 0),
        ({"uuid": "GPU-node-a-1"}, 1),
        ({"not_uuid": "GPU-node-a-0"}, 1),
    ],
)
def test_constraints_select_the_gpu(annotations: dict[str, str], index: int) -> None:
    gpus = (builders.gpu(0), builders.gpu(1, model="NVIDIA L4", memory_gib=24, compute_capability=(8, 9)))
    answer = place(GpuNode("node-a", gpus=gpus), request="0.5", **annotations)
    assert isinstance(answer, Placement)
    assert answer.shares[0].gpu_uuids == (f"GPU-node-a-{index}",)


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        ({"mode": Mode.MIG}, "1 not shared by annotation; nearest: node-a/0 is in mode mig"),
        ({"healthy": False, "health_reason": "XID 79"}, "1 unhealthy; nearest: node-a/0 is unhealthy: XID 79"),
        ({"cordoned": True}, "1 cordoned; nearest: node-a/0 is cordoned"),
        ({"cordoned": True, "pending_mode": Mode.MIG}, "1 cordoned; nearest: node-a/0 is changing to mode mig"),
        (
            {"memory_gib": 24},
            "1 too small; nearest: node-a/0 has 24Gi in total, less than 30Gi; none of these can ever fit",
        ),
        (
            {"model": "NVIDIA T4"},
            "1 of another model; nearest: node-a/0 has model NVIDIA T4, not *A100*; none of these can ever fit",
        ),
    ],
)
def test_each_rule_explains_itself(gpu: dict[str, object], reason: str) -> None:
    refusal = place(GpuNode("node-a", gpus=(builders.gpu(**gpu),)), request="0.5", memory="30Gi", model="*A100*")
    assert str(refusal) == f"no GPU fits 0.5 GPU with 30Gi: of 1 GPU on 1 node, {reason}"


@pytest.mark.parametrize(("model", "wanted"), [("NVIDIA A100-SXM4-40GB", "A10"), ("NVIDIA L40S", "L40"), ("T4", "4")])
def test_part_of_a_word_is_another_model(model: str, wanted: str) -> None:
    node = GpuNode("node-a", gpus=(builders.gpu(0, model=model),))
    assert "1 of another model" in str(place(node, request="0.5", model=wanted))


def held(**labels: str) -> GpuNode:
    return ledger.reserve(builders.node(gpus=2), builders.allocation("a", request=10, **labels))


@pytest.mark.parametrize(
    ("labels", "annotations", "index"),
    [
        pytest.param({"affinity": "x"}, {"affinity": "x"}, 0, id="affinity-joins"),
        pytest.param({"affinity": "x"}, {"affinity": "y"}, 1, id="affinity-to-others-takes-an-empty-card"),
        pytest.param({"anti_affinity": "x"}, {"anti_affinity": "x"}, 1, id="anti-affinity-keeps-apart"),
        pytest.param({"anti_affinity": "x"}, {"anti_affinity": "y"}, 0, id="another-anti-affinity-may-share"),
        pytest.param({"exclusion": "x"}, {"exclusion": "x"}, 0, id="same-exclusion-shares"),
        pytest.param({"exclusion": "x"}, {}, 1, id="exclusion-keeps-the-unlabelled-out"),
        pytest.param({}, {"exclusion": "x"}, 1, id="exclusion-keeps-off-the-unlabelled"),
    ],
)
def test_locality(labels: dict[str, str], annotations: dict[str, str], index: int) -> None:
    answer = place(held(**labels), request="0.1", policy="pack", **annotations)
    assert isinstance(answer, Placement)
    assert answer.shares[0].gpu_uuids == (f"GPU-node-a-{index}",)


def test_unfit_node_is_reported_with_its_reason() -> None:
    asked = request.parse(builders.pod(request="0.5"))
    refusal = placement.place(builders.views(builders.node()), asked, unfit=lambda _: "is not ready")
    assert str(refusal) == (
        "no GPU fits 0.5 GPU with 50% of the memory: of 4 GPUs on 1 node, 1 node that cannot take the pod; nearest: node-a is not ready"
    )


def test_refusal_names_a_cluster_without_gpus() -> None:
    assert str(place(request="0.5")) == (
        "no GPU fits 0.5 GPU with 50% of the memory: gpushare does not know any GPU; is its agent running on the GPU nodes?"
    )


def test_two_containers_may_share_but_not_overfill_a_gpu() -> None:
    manifest = builders.pod(containers=("a", "b"), **{"request.a": "0.6", "request.b": "0.6"})
    answer = placement.place(builders.views(builders.node(gpus=2)), request.parse(manifest))
    assert isinstance(answer, Placement)
    assert len({share.gpu_uuids for share in answer.shares}) == 2
    alone = placement.place(builders.views(builders.node(gpus=1)), request.parse(manifest))
    assert isinstance(alone, Refusal)


def test_result_does_not_depend_on_the_order_of_nodes() -> None:
    nodes = [builders.node(name) for name in ("c", "a", "b")]
    answers = {str(place(*nodes[turn:], *nodes[:turn], request="0.5")) for turn in range(3)}
    assert len(answers) == 1


def test_overcommitted_gpu_takes_not_even_idle_compute() -> None:
    held = tuple(builders.allocation(f"a{number}", request=60, memory_gib=1) for number in range(2))
    (view,) = builders.views(dataclasses.replace(builders.node(gpus=1), allocations=held))
    refusal = placement.place([view], request.parse(builders.pod(memory="1Gi")))
    assert isinstance(refusal, Refusal)
    assert "1 with too little compute free" in refusal.reason


@pytest.mark.parametrize(
    ("annotations", "never"),
    [
        ({"memory": "100Gi"}, True),
        ({"request": "0.5", "model": "*H100*"}, True),
        ({"request": "0.5", "gpus": "9"}, True),
        ({"request": "0.6"}, False),
    ],
)
def test_refusal_distinguishes_never_from_not_now(annotations: dict[str, str], never: bool) -> None:
    held = tuple(builders.allocation(f"a{at}", f"GPU-node-a-{at}", request=50) for at in range(4))
    node = dataclasses.replace(builders.node(), allocations=held)
    refusal = placement.place([NodeView.from_node(node)], request.parse(builders.pod(**annotations)))
    assert str(refusal).endswith("; none of these can ever fit") is never
