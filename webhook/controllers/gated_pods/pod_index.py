"""PodIndex: our pods by what there is to do about them, kept as we are told of each. Pure.

Nearly all pods were placed long ago and run on. A round looks at the others alone, so that it does not cost by how many
there are: its process answers reviews as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from webhook.controllers import queue
from webhook.controllers.gated_pods import gang
from webhook.pods.stored_pod import Pod


class PodIndex:
    """`waiting` and `stuck`: by uid; see `Pod`. members: of each gang by uid all that do not leave."""

    def __init__(self, pods: Iterable[Pod] = ()) -> None:
        self.waiting: dict[str, Pod] = {}
        self.stuck: dict[str, Pod] = {}
        self.members: dict[gang.Group, dict[str, Pod]] = {}
        self._placed: dict[str, queue.Order] = {}
        for pod in pods:
            self.pod(None, pod)

    def pod(self, before: Pod | None, after: Pod | None) -> None:
        """A pod came (`before` is None), changed, or went (`after` is None)."""
        group = gang.member_of(before) if before is not None else None
        if before is not None and group is not None and (after is None or gang.member_of(after) != group):
            del self.members[group][before.ref.uid]
            if not self.members[group]:
                del self.members[group]
        if after is None:
            for kept in (self.waiting, self.stuck, self._placed):
                kept.pop(before.ref.uid if before is not None else "", None)
            return
        uid = after.ref.uid
        for kept, belongs in ((self.waiting, after.waits), (self.stuck, after.is_stuck)):
            if belongs:
                kept[uid] = after
            else:
                kept.pop(uid, None)
        if (group := gang.member_of(after)) is not None:
            self.members.setdefault(group, {})[uid] = after
        if after.allocation_id and not (before is not None and before.allocation_id):
            self._placed[uid] = queue.order(after)

    def newly_placed(self) -> Mapping[str, queue.Order]:
        """By uid the place in the queue of those that have been placed since this was asked last, and are there."""
        placed, self._placed = self._placed, {}
        return placed
