"""PodIndex: the pods that a round has work for, updated with each change of a pod. Pure.

Nearly all pods were placed long ago. A round must not take longer because there are many of them: its process also
answers reviews.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from webhook.controllers import queue
from webhook.controllers.gated_pods import gang
from webhook.pods.stored_pod import Pod


class PodIndex:
    """Waiting and stuck pods (see `Pod`) by UID, and the members of each gang that are not being deleted, by UID."""

    def __init__(self, pods: Iterable[Pod] = ()) -> None:
        self.waiting: dict[str, Pod] = {}
        self.stuck: dict[str, Pod] = {}
        self.members: dict[gang.Group, dict[str, Pod]] = {}
        self._placed: dict[str, queue.Order] = {}
        for pod in pods:
            self.update(None, pod)

    def update(self, before: Pod | None, after: Pod | None) -> None:
        """Record that a pod was created (`before` is None), changed, or deleted (`after` is None)."""
        group = gang.group_of(before) if before is not None else None
        if before is not None and group is not None and (after is None or gang.group_of(after) != group):
            del self.members[group][before.ref.uid]
            if not self.members[group]:
                del self.members[group]
        if after is None:
            for index in (self.waiting, self.stuck, self._placed):
                index.pop(before.ref.uid if before is not None else "", None)
            return
        uid = after.ref.uid
        for index, belongs in ((self.waiting, after.waits), (self.stuck, after.is_stuck)):
            if belongs:
                index[uid] = after
            else:
                index.pop(uid, None)
        if (group := gang.group_of(after)) is not None:
            self.members.setdefault(group, {})[uid] = after
        if after.allocation_id and not (before is not None and before.allocation_id):
            self._placed[uid] = queue.order(after)

    def newly_placed(self) -> Mapping[str, queue.Order]:
        """Return the queue order, by UID, of existing pods that were placed since the last call."""
        placed, self._placed = self._placed, {}
        return placed
