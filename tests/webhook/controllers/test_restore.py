"""Shares that are missing in the ledger, and their restored entries."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import codec, contract, errors, ledger, placement
from gpushare import request as requests
from gpushare.allocation import Isolation, PodRef
from gpushare.refusal import Refusal
from tests import builders
from webhook.controllers import restore
from webhook.pods import mutation
from webhook.pods.stored_pod import Pod
from webhook.store import node_ledger
from webhook.store.memory_store import MemoryStore
from webhook.store.reservation import Reservation


def holder(name: str = "trainer", *, phase: str = "Running", **asked: str) -> dict[str, Any]:
    known = {"allocation": "a1", "node": "node-a", "gpu_uuids": "GPU-node-a-0", "request": "0.5", **asked}
    made = builders.counted(builders.pod(name, **known))
    made["metadata"].update(uid=f"u-{name}", creationTimestamp="2026-01-01T00:00:00Z")
    return {**made, "status": {"phase": phase}}


def uncounted() -> dict[str, Any]:
    made = holder()
    made["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1"}}
    return made


def mirror() -> dict[str, Any]:
    made = holder()
    made["metadata"]["annotations"][contract.MIRROR_ANNOTATION] = "x"
    return made


def elsewhere(namespace: str) -> dict[str, Any]:
    made = holder()
    made["metadata"]["namespace"] = namespace
    return made


def leaving(**status: Any) -> dict[str, Any]:
    made = holder()
    made["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:05Z", "finalizers": ["tenant.example/stay"]}
    return {**made, "status": {"phase": "Pending", **status}}


def test_terminating_pod_that_started_keeps_its_share() -> None:
    started = Pod.from_manifest(leaving(containerStatuses=[{"name": "main"}]))
    assert restore.lost([builders.node()], [started]) == {"node-a": [started]}
    assert restore.orphaned({"another"}, [started, Pod.from_manifest(leaving())]) == [started]


def test_a_node_that_was_never_written_is_closed() -> None:
    bare = {"metadata": {"name": "node-a"}, "status": codec.to_status(builders.node())}
    for document in (bare, {**bare, "spec": {}}, {**bare, "spec": {"cordoned": []}}):
        node = node_ledger.as_open(document, codec.read(document))
        assert not any(gpu.takes_shares for gpu in node.gpus)
        assert node.gpus[0].closed.startswith("its ledger was recreated")
    document = {**bare, "spec": {"allocations": []}}
    assert node_ledger.as_open(document, codec.read(document)) == builders.node()


def test_living_pod_without_its_share_is_found() -> None:
    assert restore.lost([builders.node()], [Pod.from_manifest(holder())]) == {"node-a": [Pod.from_manifest(holder())]}


@pytest.mark.parametrize(
    "one",
    [
        holder(phase="Succeeded"),
        holder(node="node-z"),
        builders.pod(request="0.5"),
        {**holder(), "spec": {**holder()["spec"], "nodeName": "node-z"}},
        uncounted(),
        mirror(),
        elsewhere("kube-system"),
        elsewhere(contract.SYSTEM_NAMESPACE),
        leaving(),
        {**holder(), "spec": {**holder()["spec"], "schedulingGates": [{"name": contract.SCHEDULING_GATE}]}},
    ],
)
def test_pod_that_does_not_exist_has_lost_nothing(one: dict[str, Any]) -> None:
    assert restore.lost([builders.node()], [Pod.from_manifest(one)]) == {}


def test_pod_with_a_share_has_lost_nothing() -> None:
    for entry in (builders.allocation("a1"), builders.allocation("a2", uid="u-trainer")):
        assert restore.lost([ledger.reserve(builders.node(), entry)], [Pod.from_manifest(holder())]) == {}


def test_share_without_room_is_reported() -> None:
    pods = [holder("one", request="0.6"), holder("two", request="0.6", allocation="a2")]
    node, failed = restore.restore(builders.node(), list(map(Pod.from_manifest, pods)))
    assert [entry.pod.name for entry in node.allocations] == ["one"]
    assert failed == {"u-two": "node-a/0 does not have enough left for default/two"}


def test_shares_are_restored_in_the_order_in_which_they_were_placed() -> None:
    """The agent identifies a share by its position within the allocation."""
    keys = {"request.main": "0.2", "request.side": "0.6"}
    asked = builders.pod(containers=("main", "side"), **keys)
    placed = placement.place(builders.views(builders.node()), requests.parse(asked))
    assert isinstance(placed, placement.Placement)
    known = {f"gpu-uuids.{share.containers[0]}": share.gpu_uuids[0] for share in placed.shares}
    stored = builders.pod(containers=("main", "side"), node="node-a", allocation="a1", **keys, **known)
    assert restore.allocation(Pod.from_manifest(stored), builders.node()).shares == placed.shares


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"gpu_uuids": "GPU-gone"}, 'node-a has no GPU "GPU-gone"'),
        ({"gpu_uuids": ""}, "gpushare.io/gpu-uuids does not name 1 GPUs"),
        ({"request": "NaN"}, 'gpushare.io/request "NaN" is not a part of a GPU'),
    ],
)
def test_invalid_annotations_are_reported(asked: dict[str, str], said: str) -> None:
    with pytest.raises(errors.GpushareError) as raised:
        restore.allocation(Pod.from_manifest(holder(**asked)), builders.node())
    assert str(raised.value).startswith(said)


ASKED = st.fixed_dictionaries(
    {},
    optional={
        "request": st.sampled_from(["0.2", "0.5", "1"]),
        "memory": st.sampled_from(["8Gi", "10%", "33%"]),
        "gpus": st.sampled_from(["1", "2", "3"]),
        "request.b": st.sampled_from(["0.1", "0.4"]),
        "memory.c": st.sampled_from(["1Gi", "7%"]),
        "exclusion": st.just("team"),
        "latency": st.just("true"),
        "isolation": st.sampled_from(["auto", "arbiter", "mig"]),
    },
).filter(lambda asked: bool({"request", "memory", "gpus", "request.b", "memory.c"} & asked.keys()))


@pytest.mark.slow
@given(ASKED)
async def test_law_restored_entry_equals_the_lost_one(asked: dict[str, str]) -> None:
    """An entry is restored as it was, for every request, on a node with different GPUs."""
    node = builders.node(isolations=tuple(Isolation), mig_geometry=builders.mig_geometry())
    node = dataclasses.replace(node, gpus=(*node.gpus, builders.gpu(4, memory_gib=40), builders.gpu(5, memory_gib=24)))
    pod = builders.pod(containers=("a", "b", "c"), **asked)
    pod["metadata"]["uid"] = "u-1"
    store = MemoryStore([codec.to_document(node)])
    try:
        request = requests.parse(pod)
    except errors.RequestError:  # of mig with several shares or GPUs
        return
    outcome = await Reservation(store, policy="spread").reserve(pod, request, PodRef("default", "trainer", "u-1"))
    if isinstance(outcome, Refusal):
        return
    stored = mutation.rewrite(pod, request, outcome)
    (view,) = store.views()
    (given_,) = view.node.allocations
    restored, failed = restore.restore(node, [Pod.from_manifest(stored)])
    assert failed == {}
    (again,) = restored.allocations
    order = lambda entry: sorted(entry.shares, key=lambda share: (share.containers, share.gpu_uuids))  # noqa: E731
    assert dataclasses.replace(again, shares=()) == dataclasses.replace(given_, shares=())
    assert order(again) == order(given_)


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ({}, "arbiter"),
        ({"isolation": "auto"}, "arbiter"),
        ({"isolation": "auto", "isolation_given": "mps"}, "mps"),
        ({"isolation_given": "mps"}, "mps"),
        ({"isolation": "mps"}, "mps"),
    ],
)
def test_restored_share_has_the_isolation_that_it_was_given(asked: dict[str, str], kind: str) -> None:
    node, failed = restore.restore(builders.node(), [Pod.from_manifest(holder(**asked))])
    assert failed == {}
    assert [entry.labels.isolation for entry in node.allocations] == [kind]


def test_share_with_an_unknown_isolation_is_reported() -> None:
    node, failed = restore.restore(builders.node(), [Pod.from_manifest(holder(isolation_given="wall"))])
    assert node.allocations == ()
    assert failed == {"u-trainer": 'gpushare.io/isolation-given "wall" is not one of arbiter, mps, mig, none'}


SHARE = builders.allocation(request=20, limit=80, memory_gib=30).shares[0]


@pytest.mark.parametrize("asked", [{"request": "0.9"}, {"request": "0.1", "limit": "0.05"}, {"memory": "1Gi"}])
def test_resizing_pod_is_restored_with_its_held_amounts(
    asked: dict[str, str],
) -> None:
    pod = holder(held=codec.shares_text([SHARE]), affinity="red", **asked)
    entry = restore.allocation(Pod.from_manifest(pod), builders.node())
    assert entry.shares == (SHARE,)
    assert entry.labels.affinity == "red"


def test_invalid_held_annotation_is_reported() -> None:
    for nonsense in ("", "{}", "5", "[1]", '[{"containers":[],"gpus":[],"memory":-1}]'):
        node, failed = restore.restore(builders.node(), [Pod.from_manifest(holder(held=nonsense))])
        assert node.allocations == ()
        assert failed["u-trainer"].startswith("gpushare.io/held is invalid: ")


def test_remembered_entries_take_precedence_over_annotations() -> None:
    before = builders.allocation("a1", request=20, memory_gib=30, uid="u-trainer")
    node, failed = restore.restore(builders.node(), [Pod.from_manifest(holder(request="0.9", memory="1Gi"))], [before])
    assert (node.allocations, failed) == ((before,), {})
    of_another = dataclasses.replace(before, pod=PodRef("default", "trainer", "u-another"))
    node, _ = restore.restore(builders.node(), [Pod.from_manifest(holder(request="0.9", memory="1Gi"))], [of_another])
    assert node.allocations[0].shares[0].request_percent == 90
