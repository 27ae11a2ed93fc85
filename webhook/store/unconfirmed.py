"""Unconfirmed reservations: those whose pods nobody has seen yet, and namespaces whose pods did not come. Pure.

A share is reserved before the API server stores its pod, and whoever judges the pod after us may refuse it. Then it is
kept from others until it lapses. So a namespace may have only so much reserved at a time, nothing more while a pod is
overdue, and nothing for an hour after several have not come. Its pods are let in without a share then, and the placer
gives those their turn that are stored. What ends long before its time was given back by us, as when the API server took
too long to write it: of that nobody's pod is to blame.

Who reaches the webhook's port without being the API server may name any namespaces in reviews that he makes up. So all
together may have only so much as well, and after very many that did not come nothing is reserved for anybody: a pod
that is stored nobody has made up.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable
from typing import Final

from gpushare import ledger
from gpushare.allocation import Allocation
from gpushare.gpunode import GpuNode
from gpushare.refusal import Cause, Refusal

MAX_PART: Final = 8  # of all GPUs one namespace may have one in so many reserved for pods on their way,
MIN_GPUS: Final = 2.0  # or these
OVERDUE_SECONDS: Final = 5.0  # a pod is stored and seen in well under a second
MAX_PART_TOGETHER: Final = 2  # and all namespaces together one in so many
LAPSES: Final = 3
LAPSES_TOGETHER: Final = 9
LAPSES_SECONDS: Final = 3600.0


@dataclasses.dataclass(slots=True)
class _Reserved:
    namespace: str
    gpus: float
    since: float
    has_come: bool
    is_stored: bool = False


class UnconfirmedReservations:
    """`clock` in seconds, of any origin. `is_seen`: whether there is a pod that names this allocation.

    lifetime_seconds: of a reservation; what ends before half of it has not lapsed.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        is_seen: Callable[[str], bool] = lambda _: False,
        *,
        lifetime_seconds: float = 0.0,
    ) -> None:
        self._clock = clock
        self._early_seconds = lifetime_seconds / 2
        self._is_seen = is_seen
        self._known: dict[str, _Reserved] = {}  # by id
        self._by_node: dict[str, set[str]] = {}
        self._waiting: dict[str, dict[str, _Reserved]] = {}  # by namespace, those whose pods have not come
        self._lapses: dict[str, collections.deque[float]] = {}
        self._lapses_together: collections.deque[float] = collections.deque(maxlen=LAPSES_TOGETHER)
        self._gpus: dict[str, int] = {}

    def look(self, view: GpuNode, stored: GpuNode) -> None:
        """A node has changed: as it is with what this process is about to write, and as it is stored."""
        now = self._clock()
        sizes = {gpu.uuid: gpu.memory_bytes for gpu in view.gpus}
        written = {entry.id for entry in stored.allocations}
        unconfirmed = set()
        for entry in view.allocations:
            if entry.pod.uid or entry.is_hold:
                continue
            unconfirmed.add(entry.id)
            if entry.id not in self._known:
                reserved = _Reserved(entry.pod.namespace, _gpus(entry, sizes), now, self._is_seen(entry.id))
                self._known[entry.id] = reserved
                if not reserved.has_come:
                    self._waiting.setdefault(reserved.namespace, {})[entry.id] = reserved
            self._known[entry.id].is_stored |= entry.id in written
        there = {entry.id for entry in view.allocations}
        for identity in self._by_node.get(view.name, set()) - unconfirmed:
            reserved = self._end(identity)
            is_late = now - reserved.since >= self._early_seconds
            if reserved.is_stored and not reserved.has_come and identity not in there and is_late:
                self._lapsed(reserved.namespace, now)
        self._by_node[view.name] = unconfirmed
        self._gpus[view.name] = len(view.gpus)

    def forget(self, node: str) -> None:
        """The node is gone, and what was reserved there with it."""
        self._gpus.pop(node, None)
        for identity in self._by_node.pop(node, set()):
            self._end(identity)

    def seen(self, allocation_id: str) -> None:
        """A pod that names it was seen."""
        reserved = self._known.get(allocation_id)
        if reserved is not None:
            reserved.has_come = True
            self._wait_no_more(allocation_id, reserved)

    def why_not(self, namespace: str) -> Refusal | None:
        """Why nothing more is reserved for the namespace now; None when there is nothing against it."""
        why = self._against(namespace)
        return None if why is None else Refusal(why, cause=Cause.UNCLAIMED)

    def _against(self, namespace: str) -> str | None:
        now = self._clock()
        lapses = self._lapses.get(namespace, ())
        recent = sum(now - at < LAPSES_SECONDS for at in lapses)
        if recent >= LAPSES:
            return (
                f"{LAPSES} pods of this namespace were rejected after placement in the last hour, so its pods are now "
                "placed only once they exist"
            )
        waiting = self._waiting.get(namespace, {}).values()
        together = self._lapses_together
        if len(together) == LAPSES_TOGETHER and now - together[0] < LAPSES_SECONDS:
            return (
                f"{LAPSES_TOGETHER} pods of several namespaces were rejected after placement in the last hour, so pods "
                "are now placed only once they exist"
            )
        if any(now - reservation.since > OVERDUE_SECONDS for reservation in waiting):
            return (
                "another pod of this namespace that was placed does not exist yet, so its pods are now placed only "
                "once they exist"
            )
        gpus = sum(self._gpus.values())
        everywhere = (reservation for of_one in self._waiting.values() for reservation in of_one.values())
        for reserved, part, whose in (
            (waiting, MAX_PART, "pods of this namespace"),
            (everywhere, MAX_PART_TOGETHER, "pods of all namespaces"),
        ):
            most = max(MIN_GPUS, gpus / part)
            if _total(reserved) >= most:
                return (
                    f"{most:g} GPUs are reserved for {whose} that do not exist yet, so this pod is placed only once it "
                    "exists"
                )
        return None

    def _end(self, identity: str) -> _Reserved:
        reserved = self._known.pop(identity)
        self._wait_no_more(identity, reserved)
        return reserved

    def _wait_no_more(self, identity: str, reserved: _Reserved) -> None:
        there = self._waiting.get(reserved.namespace, {})
        there.pop(identity, None)
        if not there:
            self._waiting.pop(reserved.namespace, None)

    def _lapsed(self, namespace: str, now: float) -> None:
        self._lapses_together.append(now)
        self._lapses.setdefault(namespace, collections.deque(maxlen=LAPSES)).append(now)
        self._lapses = {name: times for name, times in self._lapses.items() if now - times[-1] < LAPSES_SECONDS}


def _total(reserved: Iterable[_Reserved]) -> float:
    return sum(reservation.gpus for reservation in reserved)


def _gpus(entry: Allocation, sizes: dict[str, int]) -> float:
    """How many GPUs' worth it keeps from others."""
    held = {uuid: ledger.held(entry, uuid) for uuid in entry.gpu_uuids}
    return sum(
        max(request_percent / 100, memory_bytes / sizes[uuid] if sizes.get(uuid) else 0.0)
        for uuid, (request_percent, memory_bytes) in held.items()
    )
