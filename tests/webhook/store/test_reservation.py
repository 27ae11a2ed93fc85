"""Reservations and reinvoked pods, on a store in memory to which others write too."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import jsonpatch
import pytest

from gpushare import codec, contract, ledger
from gpushare import request as requests
from gpushare.allocation import Labels, PodRef
from gpushare.gpunode import GpuNode, Resize
from gpushare.placement import exclusive_gpus
from gpushare.refusal import Cause, Refusal
from tests import builders
from webhook import metrics, review
from webhook.admission import Admission
from webhook.pods import mutation
from webhook.store import ledger_store, memory_store
from webhook.store.reservation import LIFETIME_SECONDS, Reservation, new_id

HOLDER = PodRef("default", "trainer")
NOW = 1_000_000.0


class Shared(memory_store.MemoryStore):
    """A store to which other replicas write just before us, as often as `others` has changes."""

    def __init__(self, *nodes: GpuNode, others: list[ledger_store.Change] | None = None, **options: Any) -> None:
        super().__init__([codec.to_document(node) for node in nodes], **options)
        self.others = others or []

    async def commit(self, name: str, change: ledger_store.Change) -> GpuNode:
        if self.others:
            self.change(name, self.others.pop(0))
        return await super().commit(name, change)


def reserving(on: ledger_store.LedgerStore, **options: Any) -> Reservation:
    return Reservation(on, policy="fragmentation", wall_clock=lambda: NOW, **options)


def taking(identity: str, uuid: str) -> ledger_store.Change:
    return lambda node: ledger.reserve(node, builders.allocation(identity, uuid, request=100))


def held(on: memory_store.MemoryStore, name: str = "node-a") -> Any:
    view = on.view(name)
    assert view is not None
    return view.node.allocations


async def reserve(on: ledger_store.LedgerStore, holder: PodRef = HOLDER, **asked: str) -> mutation.Placed | Refusal:
    manifest = builders.pod(**(asked or {"request": "0.5"}))
    return await reserving(on).reserve(manifest, requests.parse(manifest), holder)


async def test_a_reservation_lapses_unless_its_holder_is_known() -> None:
    on = Shared(builders.node())
    await reserve(on)
    await reserve(on, PodRef("default", "trainer", "uid-1"))
    assert [entry.reserved_until for entry in held(on)] == [NOW + LIFETIME_SECONDS, None]


async def test_gpu_that_was_taken_meanwhile_is_replaced() -> None:
    on = Shared(builders.node(gpus=2), others=[taking("other", "GPU-node-a-0")])
    placed = await reserve(on)
    assert isinstance(placed, mutation.Placed)
    assert placed.shares[0].gpu_uuids == ("GPU-node-a-1",)


async def test_rules_are_checked_on_the_node_as_stored() -> None:
    class Stale(Shared):
        def views(self) -> Any:
            return builders.views(builders.node(gpus=2))

    def exclusive(node: GpuNode) -> GpuNode:
        return ledger.reserve(node, builders.allocation("other", "GPU-node-a-0", request=1, exclusion="team-a"))

    placed = await reserve(Stale(builders.node(gpus=2), others=[exclusive]))
    assert isinstance(placed, mutation.Placed)
    assert placed.shares[0].gpu_uuids == ("GPU-node-a-1",)


class Counting(Shared):
    """A store that counts how often the GPUs of a node were chosen again."""

    def __init__(self, *nodes: GpuNode, others: list[ledger_store.Change]) -> None:
        super().__init__(*nodes, others=others)
        self.chosen = 0
        self._choose = self.chooser.place_on
        self.chooser.place_on = self._counted  # type: ignore[method-assign]

    def _counted(self, *arguments: Any, **options: Any) -> Any:
        self.chosen += 1
        return self._choose(*arguments, **options)


def confirmed(node: GpuNode) -> GpuNode:
    return ledger.confirm(node, {"first": PodRef("default", "first", "uid-1")})


def lending(node: GpuNode) -> GpuNode:
    return dataclasses.replace(node, resizes=(Resize("first", 0, 16 << 30, 0),))


def sick(node: GpuNode) -> GpuNode:
    gpus = (dataclasses.replace(node.gpus[0], healthy=False, health_reason="XID 79"), *node.gpus[1:])
    return dataclasses.replace(node, gpus=gpus)


@pytest.mark.parametrize(
    ("meanwhile", "times"),
    [
        pytest.param(lambda node: node, 0, id="nothing"),
        pytest.param(confirmed, 0, id="who-is-there-was-seen"),
        pytest.param(taking("other", "GPU-node-a-1"), 0, id="another-gpu-was-taken"),
        pytest.param(lambda node: ledger.release(node, {"first"}), 1, id="a-share-of-it-was-released"),
        pytest.param(lending, 1, id="memory-of-it-was-lent"),
        pytest.param(sick, 1, id="it-fell-sick"),
    ],
)
async def test_gpus_are_chosen_anew_only_if_something_has_changed_on_them(
    meanwhile: ledger_store.Change, times: int
) -> None:
    first = builders.allocation("first", "GPU-node-a-0", request=30, reserved_until=NOW)
    first = dataclasses.replace(first, pod=PodRef("default", "first"))
    on = Counting(dataclasses.replace(builders.node(gpus=2), allocations=(first,)), others=[meanwhile])
    placed = await reserve(on)
    assert isinstance(placed, mutation.Placed)
    assert on.chosen == times
    assert placed.shares[0].gpu_uuids == ("GPU-node-a-1" if meanwhile is sick else "GPU-node-a-0",)


async def test_node_that_filled_up_meanwhile_is_replaced() -> None:
    conflicts: list[None] = []
    on = Shared(builders.node("node-a", gpus=1), builders.node("node-b", gpus=1), others=[taking("x", "GPU-node-a-0")])
    manifest = builders.pod(request="0.5")
    placed = await reserving(on, on_conflict=lambda: conflicts.append(None)).reserve(
        manifest, requests.parse(manifest), HOLDER
    )
    assert isinstance(placed, mutation.Placed)
    assert placed.node == "node-b"
    assert len(conflicts) == 1


async def test_change_that_no_longer_fits_fails_with_the_current_reason() -> None:
    on = Shared(builders.node(gpus=1), others=[taking("other", "GPU-node-a-0")])
    refused = await reserve(on)
    assert isinstance(refused, Refusal)
    assert "with too little compute free" in refused.reason


async def test_bound_on_exclusive_gpus_is_checked_at_the_write() -> None:
    bound = exclusive_gpus.ExclusiveBound("default", "gpus", 100)
    entry = dataclasses.replace(builders.allocation("other", "GPU-node-a-0", request=1), labels=Labels(exclusion="red"))
    on = Shared(builders.node(), others=[lambda node: ledger.reserve(node, entry)], bound=lambda _: bound)
    refused = await reserve(on, request="0.01", exclusion="blue")
    assert isinstance(refused, Refusal)
    assert refused.cause is Cause.QUOTA
    assert [kept.id for kept in held(on)] == ["other"]
    placed = await reserve(on, request="0.01", exclusion="red")
    assert isinstance(placed, mutation.Placed)
    assert placed.shares[0].gpu_uuids == ("GPU-node-a-0",)


async def test_a_ledger_that_does_not_answer_gates_the_pod_in_time() -> None:
    class Silent(Shared):
        async def commit(self, name: str, change: ledger_store.Change) -> GpuNode:
            await asyncio.Event().wait()
            return self.change(name, change)

    manifest = builders.pod(request="0.5")
    refused = await reserving(Silent(builders.node()), deadline_seconds=0.05).reserve(
        manifest, requests.parse(manifest), HOLDER
    )
    assert isinstance(refused, Refusal)
    assert refused.reason == ("the ledger of GPUs could not be written (no answer in 0.05 s): the placer retries")


async def test_write_with_a_lost_answer_is_found() -> None:
    class Forgetful(Shared):
        async def commit(self, name: str, change: ledger_store.Change) -> GpuNode:
            self.change(name, change)
            return self.change(name, change)

    on = Forgetful(builders.node())
    assert isinstance(await reserve(on), mutation.Placed)
    assert len(held(on)) == 1


async def test_pods_are_not_gated_before_the_ledger_is_read() -> None:
    class Starting(Shared):
        def missing(self) -> str | None:
            return "the GPUNodes have not been read yet"

    answer = await admission(Starting()).answer(asked(builders.pod(request="0.5")))
    assert (answer.allowed, answer.code) == (False, 503)
    assert answer.message == "gpushare is starting: the GPUNodes have not been read yet; try again in a moment"


def test_ids_are_unique_and_fit_into_a_label() -> None:
    ids = {new_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(identity) == 26 and identity.isalnum() and identity.islower() for identity in ids)


# --- the pod that comes again ---------------------------------------------------------------------------------------


def admission(on: ledger_store.LedgerStore) -> Admission:
    return Admission(on, reserving(on), metrics.Metrics())


def asked(manifest: Any, **more: Any) -> review.AdmissionRequest:
    return {"uid": "u", "operation": "CREATE", "namespace": "default", "object": manifest, **more}  # type: ignore[typeddict-item]


async def admitted(on: ledger_store.LedgerStore, manifest: Any) -> tuple[review.ReviewResponse, Any]:
    answer = await admission(on).answer(asked(manifest))
    patch: Any = list(answer.patch)
    return answer, jsonpatch.apply_patch(manifest, patch)


async def test_reinvoked_pod_keeps_its_reservation() -> None:
    on = Shared(builders.node())
    _, stored = await admitted(on, builders.pod(request="0.5", memory="10%"))
    env = [{"name": contract.ENV_VISIBLE_DEVICES, "value": "void"}]
    stored["spec"]["containers"].append({"name": "injected-by-another-webhook"})
    again, unchanged = await admitted(on, stored)
    assert again.outcome == "kept"
    assert again.patch == [{"op": "add", "path": "/spec/containers/1/env", "value": env}]  # which sees no GPU
    assert again.warnings == ()
    stored["spec"]["containers"][1]["env"] = env
    assert unchanged == stored
    assert len(held(on)) == 1


async def test_changes_undone_by_another_webhook_are_repeated() -> None:
    on = Shared(builders.node())
    _, stored = await admitted(on, builders.pod(request="0.5"))
    stored["spec"]["containers"][0]["env"] = []
    again, repaired = await admitted(on, stored)
    assert again.outcome == "kept"
    assert contract.ENV_VISIBLE_DEVICES in [entry["name"] for entry in repaired["spec"]["containers"][0]["env"]]


Spoil = Callable[[Any, Shared], None]


def another_name(stored: Any, _: Shared) -> None:
    stored["metadata"]["name"] = "copy"


def another_request(stored: Any, _: Shared) -> None:
    stored["metadata"]["annotations"][contract.LIMIT] = "0.5"


def another_model(stored: Any, _: Shared) -> None:
    stored["metadata"]["annotations"][contract.NOT_UUID] = stored["metadata"]["annotations"][contract.GPU_UUIDS]


def confirmed(stored: Any, on: Shared) -> None:
    identity = stored["metadata"]["annotations"][contract.ALLOCATION]
    on.change("node-a", lambda node: ledger.confirm(node, {identity: PodRef("default", "trainer", "uid-1")}))


async def test_reservation_is_kept_only_for_the_same_pod() -> None:
    for spoil in (another_name, confirmed):
        on = Shared(builders.node())
        _, stored = await admitted(on, builders.pod(request="0.5"))
        first = stored["metadata"]["annotations"][contract.ALLOCATION]
        spoil(stored, on)
        again, recreated = await admitted(on, stored)
        assert again.outcome == "placed", spoil.__name__
        assert recreated["metadata"]["annotations"][contract.ALLOCATION] != first
        assert any("only gpushare writes gpushare.io/allocation" in warning for warning in again.warnings)
        assert len(held(on)) == 2


async def test_request_changed_by_another_webhook_gets_a_new_reservation() -> None:
    for changed in (another_request, another_model):
        on = Shared(builders.node())
        _, stored = await admitted(on, builders.pod(request="0.5"))
        first = stored["metadata"]["annotations"][contract.ALLOCATION]
        changed(stored, on)
        again, recreated = await admitted(on, stored)
        assert (again.outcome, again.warnings) == ("placed", ()), changed.__name__
        assert (
            [entry.id for entry in held(on)] == [recreated["metadata"]["annotations"][contract.ALLOCATION]] != [first]
        )


async def test_allocation_id_of_another_namespace_is_ignored() -> None:
    on = Shared(builders.node())
    _, stored = await admitted(on, builders.pod(request="0.5"))
    answer = await admission(on).answer(asked(stored, namespace="elsewhere"))
    assert answer.outcome == "placed"
    assert len(held(on)) == 2
