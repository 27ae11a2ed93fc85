"""Index: our pods by what there is to do about them, kept as we are told of each. Pure.

Nearly all pods were placed long ago and run on. A round looks at the others alone, so that it does not cost by how many
there are: its process answers reviews as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpushare import contract, pod
from webhook.placer import gang, queue, unschedulable_pods

PodJson = Mapping[str, Any]


class Index:
    """`waiting` and `stuck`: by uid; see `queue` and `stuck`. members: of each gang by uid all that do not leave."""

    def __init__(self, pods: Iterable[PodJson] = ()) -> None:
        self.waiting: dict[str, PodJson] = {}
        self.stuck: dict[str, PodJson] = {}
        self.members: dict[gang.Group, dict[str, PodJson]] = {}
        self._placed: dict[str, queue.Order] = {}
        for one in pods:
            self.pod(None, one)

    def pod(self, before: PodJson | None, after: PodJson | None) -> None:
        """A pod came (`before` is None), changed, or went (`after` is None)."""
        group = gang.member_of(before) if before is not None else None
        if before is not None and group is not None and (after is None or gang.member_of(after) != group):
            del self.members[group][pod.uid(before)]
            if not self.members[group]:
                del self.members[group]
        if after is None:
            for found in (self.waiting, self.stuck, self._placed):
                found.pop(pod.uid(before or {}), None)
            return
        uid = pod.uid(after)
        for found, belongs in (
            (self.waiting, queue.waits(after)),
            (self.stuck, unschedulable_pods.why(after) is not None),
        ):
            if belongs:
                found[uid] = after
            else:
                found.pop(uid, None)
        if (group := gang.member_of(after)) is not None:
            self.members.setdefault(group, {})[uid] = after
        if _is_placed(after) and not (before is not None and _is_placed(before)):
            self._placed[uid] = queue.order(after)

    def newly_placed(self) -> Mapping[str, queue.Order]:
        """By uid the place in the queue of those that have been placed since this was asked last, and are there."""
        found, self._placed = self._placed, {}
        return found


def _is_placed(one: PodJson) -> bool:
    return contract.ALLOCATION in pod.annotations_of(one)
