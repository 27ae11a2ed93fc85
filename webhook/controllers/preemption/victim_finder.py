"""The victim finder: searches nodes for victims, on the pods and the ledger that the placer knows.

Pods use CPU, memory and ports of their nodes, too. Nothing is written here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from gpushare import ledger, preemption
from gpushare.allocation import Allocation
from gpushare.cluster.object_store import Key
from gpushare.defragmentation import evicting
from gpushare.gpunode import GpuNode
from gpushare.placement import NodeView, Placement
from gpushare.preemption import Holder, Nomination
from gpushare.refusal import Refusal
from gpushare.request import Request
from webhook.controllers import pacing
from webhook.pods.stored_pod import Pod
from webhook.store import ledger_store


@dataclasses.dataclass(eq=False)
class VictimFinder:
    """Finds victims on one node at a time. pods: all with a share.

    spared: protected pods by UID, until when. evicted: pods by UID that `pods` may not show as deleted yet.
    """

    store: ledger_store.LiveLedger
    pods: Mapping[Key, Pod]
    policy: str
    spared: dict[str, float] = dataclasses.field(default_factory=dict)
    evicted: dict[str, Key] = dataclasses.field(default_factory=dict)

    async def find(
        self, view: NodeView, pod: Pod, request: Request, *, own: Allocation | None = None
    ) -> Nomination | None:
        """Return the fewest victims on a node (with `own`, on its GPUs); None if evicting all candidates is no help."""

        async def place(left: NodeView, asked: Request, gone: Sequence[Allocation]) -> Placement | Refusal:
            await pacing.let_others_run()  # a node can have hundreds of candidates
            return self._placed(left, pod, asked, gone)

        return await preemption.find(
            view, request, self._holder, place, uid=pod.ref.uid, priority=pod.priority, own=own
        )

    def still_helps(self, node: GpuNode, pod: Pod, request: Request, found: Nomination) -> bool:
        """Whether the pod gets these GPUs of the node, as it is now, once the victims and pods that end have gone."""
        victims = {victim.allocation.id for victim in found.victims}
        if not victims <= {entry.id for entry in node.allocations}:
            return False
        _, ending = preemption.candidates(node, pod.priority, self._holder)
        own = [entry for entry in node.allocations if entry.is_backfill_reservation and entry.pod.uid == pod.ref.uid]
        gone = [*ending, *own, *(entry for entry in node.allocations if entry.id in victims)]
        left = NodeView.from_node(ledger.release(node, [entry.id for entry in gone]))
        uuids = tuple(uuid for share in found.placement.shares for uuid in share.gpu_uuids)
        asked = dataclasses.replace(request, constraints=dataclasses.replace(request.constraints, uuids=uuids))
        outcome = self._placed(left, pod, asked, gone)
        return isinstance(outcome, Placement) and outcome.isolation is found.placement.isolation

    def _placed(self, left: NodeView, pod: Pod, asked: Request, gone: Sequence[Allocation]) -> Placement | Refusal:
        chooser = self.store.chooser
        with chooser.cache.without(_key(entry) for entry in gone if self._pod(entry) is not None):
            return chooser.place_on(left, pod.manifest, asked, policy=self.policy)

    def _pod(self, entry: Allocation) -> Pod | None:
        pod = self.pods.get(_key(entry))
        return pod if pod is not None and pod.ref.uid == entry.pod.uid else None

    def _holder(self, entry: Allocation) -> Holder | None:
        pod = self._pod(entry)
        if pod is None:
            return None
        ends = pod.leaves or pod.has_ended or pod.ref.uid in self.evicted
        protection = "gated" if pod.is_gated else "protected a moment ago" if pod.ref.uid in self.spared else ""
        kind = pod.controller.kind if pod.controller is not None else ""
        protection = protection or evicting.protection(
            pod.annotations, kind, priority=pod.priority, max_priority=pod.priority
        )
        return Holder(pod.priority, pod.created, ends, protection)


def _key(entry: Allocation) -> Key:
    return Key(entry.pod.namespace, entry.pod.name)
