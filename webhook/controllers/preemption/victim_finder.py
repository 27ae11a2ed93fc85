"""The victim finder: the fewest pods of lower priority on a node whose eviction makes a waiting pod fit there.

The placement engine decides on the ledger, and on what the node's pods use of its CPU, memory and ports, without these
pods. Pods that end anyway count as gone. Nothing is written here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from gpushare import ledger, preemption
from gpushare.allocation import Allocation, Isolation
from gpushare.cluster.object_store import Key
from gpushare.defragmentation import evicting
from gpushare.gpunode import GpuNode
from gpushare.placement import NodeView, Placement
from gpushare.preemption import Victim, Victims
from gpushare.refusal import Refusal
from gpushare.request import Request
from webhook.pods.stored_pod import Pod
from webhook.store import ledger_store


@dataclasses.dataclass(frozen=True, slots=True)
class Nomination:
    """The node and the GPUs that a pod gets once the victims have ended; is_ending: whether some end there already."""

    placement: Placement
    victims: Victims
    is_ending: bool


@dataclasses.dataclass(eq=False)
class VictimFinder:
    """Finds victims on one node at a time. pods: all with a share.

    spared: UIDs of protected pods, until when. evicted: UIDs of pods that `pods` may not show as deleted yet.
    """

    store: ledger_store.LiveLedger
    pods: Mapping[Key, Pod]
    policy: str
    spared: dict[str, float] = dataclasses.field(default_factory=dict)
    evicted: set[str] = dataclasses.field(default_factory=set)

    def find(self, view: NodeView, pod: Pod, request: Request, *, own: Allocation | None = None) -> Nomination | None:
        """Return the fewest victims on a node (with `own`, on its GPUs); None if evicting all candidates is no help."""
        node, reserved = view.node, [entry for entry in view.node.allocations if entry.is_backfill_reservation]
        candidates, ending = self._candidates(node, pod.priority)
        if own is not None:
            # Others take the CPU and memory that victims free: more victims elsewhere on the node would follow them.
            candidates = [victim for victim in candidates if _overlaps(victim.allocation, own.gpu_uuids)]
        if own is None and not candidates and not ending:
            return None
        constraints = request.constraints
        others = tuple(uuid for entry in reserved if entry.pod.uid != pod.ref.uid for uuid in entry.gpu_uuids)
        constraints = dataclasses.replace(constraints, not_uuids=(*constraints.not_uuids, *others))
        if own is not None:
            constraints = dataclasses.replace(constraints, uuids=own.gpu_uuids)
        asked = dataclasses.replace(request, constraints=constraints)
        ignored = [*ending, *(entry for entry in reserved if entry.pod.uid == pod.ref.uid)]

        def place(gone: Victims) -> Placement | None:
            without = [*ignored, *(victim.allocation for victim in gone)]
            left = NodeView.from_node(ledger.release(node, [entry.id for entry in without]))
            with self.store.chooser.without(_key(entry) for entry in without if self._holder(entry) is not None):
                outcome = self.store.chooser.place_on(left, pod.manifest, asked, policy=self.policy)
            if isinstance(outcome, Refusal) or outcome.isolation is Isolation.MIG:
                return None  # amounts reserve no place for a MIG device
            return outcome

        victims = preemption.fewest(candidates, lambda gone: place(gone) is not None)
        placement = place(victims) if victims is not None else None
        if placement is None or victims is None:
            return None
        uuids = frozenset(uuid for share in placement.shares for uuid in share.gpu_uuids)
        # Those that only free CPU and memory go first: later rounds evict from the GPUs of the nomination alone.
        ordered = tuple(sorted(victims, key=lambda victim: _overlaps(victim.allocation, uuids)))
        return Nomination(placement, ordered, any(_overlaps(entry, uuids) for entry in ending))

    def _candidates(self, node: GpuNode, priority: int) -> tuple[list[Victim], list[Allocation]]:
        """Return the pods that may be evicted for one of this priority, and the shares of pods that end anyway."""
        candidates, ending = [], []
        for entry in node.allocations:
            if entry.is_backfill_reservation or not entry.pod.uid:
                continue
            pod = self._holder(entry)
            if pod is None or pod.leaves or pod.has_ended or pod.ref.uid in self.evicted:
                ending.append(entry)
            elif pod.priority < priority and pod.ref.uid not in self.spared and not _protection(pod, priority - 1):
                candidates.append(Victim(entry, pod.priority, pod.created))
        return candidates, ending

    def _holder(self, entry: Allocation) -> Pod | None:
        """Return the pod of an allocation; None if it is gone."""
        pod = self.pods.get(_key(entry))
        return pod if pod is not None and pod.ref.uid == entry.pod.uid else None


def _protection(pod: Pod, max_priority: int) -> str:
    if pod.is_gated:
        return "gated"
    kind = pod.controller.kind if pod.controller is not None else ""
    return evicting.protection(pod.annotations, kind, priority=pod.priority, max_priority=max_priority)


def _overlaps(entry: Allocation, uuids: Collection[str]) -> bool:
    return any(uuid in uuids for uuid in entry.gpu_uuids)


def _key(entry: Allocation) -> Key:
    return Key(entry.pod.namespace, entry.pod.name)
