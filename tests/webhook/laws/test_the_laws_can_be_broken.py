"""With any single safeguard removed, a story must fail; otherwise the stories would prove nothing."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from gpushare import ledger
from gpushare.allocation import Allocation, Isolation
from gpushare.gpunode import GpuNode
from gpushare.placement import NodeView, filters
from tests.webhook.laws import replica, stories, world
from webhook import admission
from webhook.controllers import allocation_controller, due_changes, restore
from webhook.store import api_store, node_ledger
from webhook.store.chooser import Chooser

pytestmark = pytest.mark.slow

MAX_STORIES = 1500

Break = Callable[[pytest.MonkeyPatch], None]


def no_check_at_the_write(patch: pytest.MonkeyPatch) -> None:
    """Write the choice from an old view without a check."""
    chosen: dict[int, tuple[Any, Any]] = {}
    choose, choose_again = Chooser.place, Chooser.place_on

    def choose_once(self: Any, manifest: Any, request: Any, **more: Any) -> Any:
        result = choose(self, manifest, request, **more)
        chosen[id(request)] = request, result
        return result

    def as_chosen(self: Any, view: NodeView, manifest: Any, request: Any, **more: Any) -> Any:
        _, result = chosen.get(id(request), (None, None))
        return result or choose_again(self, view, manifest, request, **more)

    def unchecked(node: GpuNode, entry: Allocation) -> GpuNode:
        return dataclasses.replace(node, allocations=(*node.allocations, entry))

    patch.setattr(Chooser, "place", choose_once)
    patch.setattr(Chooser, "place_on", as_chosen)
    patch.setattr(ledger, "reserve", unchecked)


def no_compare_in_the_swap(patch: pytest.MonkeyPatch) -> None:
    """Write a GPUNode without the version that was read."""
    draft = node_ledger.NodeLedger.draft

    def blind(self: Any, batch: Any) -> Any:
        document, carried = draft(self, batch)
        if document is not None:
            kept = {key: value for key, value in document["metadata"].items() if key != "resourceVersion"}
            document = {**document, "metadata": kept}
        return document, carried

    patch.setattr(node_ledger.NodeLedger, "draft", blind)


def a_pod_that_is_not_in_the_copy_is_gone(patch: pytest.MonkeyPatch) -> None:
    async def gone(_: Any, __: Allocation) -> bool:
        return True

    patch.setattr(allocation_controller.AllocationController, "is_gone", gone)


def a_reservation_lapses_without_a_look(patch: pytest.MonkeyPatch) -> None:
    async def nobody(_: Any, lapsed: Any) -> Any:
        return [(entry, None) for entry in lapsed]

    patch.setattr(allocation_controller.AllocationController, "claimants", nobody)


def reservations_end_by_wall_clocks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replica.Replica, "reservations_clock", replica.Replica.wall)
    patch.setattr(due_changes.FirstSeen, "timed", lambda _, nodes, **__: list(nodes))


def the_second_of_two_shares_is_spare_at_once(patch: pytest.MonkeyPatch) -> None:
    def spare(entries: Any, by_uid: Any) -> frozenset[str]:
        first: dict[str, str] = {}
        extra = set()
        for entry in sorted(entries, key=lambda entry: str(entry.allocation.id)):
            uid = entry.allocation.pod.uid
            if uid in by_uid and first.setdefault(uid, entry.allocation.id) != entry.allocation.id:
                extra.add(entry.allocation.id)
        return frozenset(extra)

    patch.setattr(due_changes, "spare_ids", spare)


def whoever_names_a_reservation_has_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admission, "is_own_reservation", lambda *_: True)


def a_dry_run_is_taken_at_its_word(patch: pytest.MonkeyPatch) -> None:
    ask = replica.Replica.ask
    patch.setattr(replica.Replica, "ask", lambda self, request: ask(self, {**request, "dryRun": False}))


def a_namesake_passes_for_the_pod_that_held_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(due_changes, "still_holds", lambda *_: True)


def the_dead_keep_what_they_held(patch: pytest.MonkeyPatch) -> None:
    release = ledger.release
    patch.setattr(ledger, "release", lambda node, ids: release(node, list(ids)[1:]))


# With the first story that fails. `test_the_ledger_survives_chaos` runs these stories too, so that a change which
# removes a safeguard breaks a law there.
SAFEGUARDS: Mapping[Break, int] = {
    no_check_at_the_write: 4,
    no_compare_in_the_swap: 4,
    a_pod_that_is_not_in_the_copy_is_gone: 56,
    a_reservation_lapses_without_a_look: 441,
    reservations_end_by_wall_clocks: 10,
    the_second_of_two_shares_is_spare_at_once: 145,
    whoever_names_a_reservation_has_it: 1082,
    a_dry_run_is_taken_at_its_word: 14,
    a_namesake_passes_for_the_pod_that_held_it: 80,
    the_dead_keep_what_they_held: 2,
}


def what_was_on_a_gpunode_goes_with_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(node_ledger.DeletedNodes, "entries", lambda *_: ())


def a_gpunode_is_opened_although_something_may_be_on_its_way(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(node_ledger.DeletedNodes, "unknown_since", lambda *_: None)


def a_promise_is_taken_for_a_share(patch: pytest.MonkeyPatch) -> None:
    """Ungate a pod for a share that this process has not written yet."""
    patch.setattr(api_store.ApiStore, "stored", lambda self: [view.node for view in self.views()])


# The same for stories in which GPUNodes are deleted.
WITHOUT_GPUNODES: Mapping[Break, int] = {
    what_was_on_a_gpunode_goes_with_it: 76,
    a_gpunode_is_opened_although_something_may_be_on_its_way: 608,
    a_promise_is_taken_for_a_share: 397,
}


def kinds_may_meet(patch: pytest.MonkeyPatch) -> None:
    kept = {name: rule for name, rule in filters.RULES.items() if name != "other-isolation"}
    patch.setattr(filters, "RULES", kept)
    patch.setattr(ledger, "isolations", lambda _: [])


def a_restored_share_has_leases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(restore, "_isolation", lambda *_: Isolation.ARBITER)


# The same for stories in which pods ask for several kinds of isolation.
OF_SEVERAL_KINDS: Mapping[Break, int] = {kinds_may_meet: 6, a_restored_share_has_leases: 7}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    for name in ("webhook", "gpushare"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    yield
    for name in ("webhook", "gpushare"):
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.mark.parametrize(
    ("take_out", "first"), SAFEGUARDS.items(), ids=[safeguard.__name__ for safeguard in SAFEGUARDS]
)
def test_a_safeguard_taken_out_breaks_a_law(take_out: Break, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    take_out(monkeypatch)
    assert _is_noticed(stories.story, first)


@pytest.mark.parametrize(
    ("take_out", "first"),
    WITHOUT_GPUNODES.items(),
    ids=[without_gpunode.__name__ for without_gpunode in WITHOUT_GPUNODES],
)
def test_safeguards_for_deleted_gpunodes_are_needed(
    take_out: Break, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_out(monkeypatch)
    assert _is_noticed(stories.without_gpunodes, first)


@pytest.mark.parametrize(
    ("take_out", "first"), OF_SEVERAL_KINDS.items(), ids=[each.__name__ for each in OF_SEVERAL_KINDS]
)
def test_safeguards_for_kinds_of_isolation_are_needed(
    take_out: Break, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_out(monkeypatch)
    assert _is_noticed(stories.of_several_kinds, first)


def _is_noticed(story: Callable[[int], world.World], first: int) -> bool:
    for seed in range(first, first + MAX_STORIES):
        try:
            story(seed).run()
        except world.LawBrokenError:
            return True
    return False
