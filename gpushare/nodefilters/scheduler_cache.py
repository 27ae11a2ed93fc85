"""SchedulerCache: all nodes and their pods, kept up to date so that filtering a node costs next to nothing.

Filter results are cached by pod key, until something changes on the node.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from gpushare import contract
from gpushare.nodefilters import affinity_rules, node_index, node_info, pod_requests, volumes
from gpushare.nodefilters.affinity_rules import PodClasses
from gpushare.nodefilters.node_index import NodeIndex, Rows, StaticCandidates
from gpushare.nodefilters.node_info import NodeInfo, NodeSpec, PodInfo
from gpushare.nodefilters.pod_key import PodAffinity, PodKey, Term
from gpushare.nodefilters.volume_filters import AttachFilter, VolumeReach

SHAPES_KEPT: Final = 256
NO_NODE: Final = "has a GPUNode but no Node object"

_COUNTED: Final = {pod_requests.CPU, pod_requests.MEMORY}  # by placement too
_OWN: Final = (contract.RESOURCE_PERCENT, contract.RESOURCE_MEMORY, contract.RESOURCE_IDLE)

# (node, amounts) -> whether the ledger itself lacks this much there; then the GPU filters give the better reasons.
IsFull = Callable[[str, tuple[tuple[str, int], ...]], bool]


class FilterResults(dict[str, str | None]):
    """node -> why pods with one key cannot run there, or None; computed on first access."""

    __slots__ = ("_candidates", "_check", "_computed_at", "_nodes", "_shape")

    def __init__(self, shape: PodKey, nodes: NodeIndex, check: Callable[[str, FilterResults], str | None]) -> None:
        self._shape = shape
        self._nodes = nodes
        self._check = check
        self._candidates: StaticCandidates | None = None
        self._computed_at = -1

    def __missing__(self, node: str) -> str | None:
        verdict = self[node] = self._check(node, self)
        return verdict

    def candidates(self) -> StaticCandidates:
        """Return the static candidates, recomputed after a Node has changed."""
        if self._candidates is None or self._computed_at != self._nodes.changes:
            self._candidates = StaticCandidates(self._nodes, self._shape)
            self._computed_at = self._nodes.changes
        return self._candidates


class NodeFilter:
    """The filter for one pod: calling it with a node returns the reason against that node, or None."""

    __slots__ = ("_nodes", "_passing", "_rules", "_sure", "_there", "_verdicts")

    def __init__(
        self,
        nodes: NodeIndex,
        verdicts: FilterResults,
        there: Mapping[str, str | None],
        rules: Sequence[affinity_rules.AffinityRule],
        sure: Callable[[], Rows],
    ) -> None:
        """`there`: the result for the node, if any, where the pod is already counted, computed without it.

        sure: returns the nodes that only a lack of CPU, memory or pods, a rule or a static filter can reject.
        """
        self._nodes = nodes
        self._verdicts = verdicts
        self._there = there
        self._rules = rules
        self._sure = sure
        self._passing = functools.reduce(operator.and_, (rule.passing for rule in rules), -1)

    def __call__(self, node: str) -> str | None:
        """Return why this node cannot take the pod, as a clause, or None."""
        verdict = self._there[node] if node in self._there else self._verdicts[node]
        if verdict is not None or not self._rules or (row := 1 << self._nodes.row(node)) & self._passing:
            return verdict
        return next(rule.why(self._nodes[node]) for rule in self._rules if not rule.passing & row)

    def fits(self, node: str) -> bool:
        """Whether the node can take the pod; faster than a call, as no reason is worded."""
        verdicts = self._there if node in self._there else self._verdicts
        is_known = node in verdicts
        if is_known and not self._rules:
            return verdicts[node] is None
        if node not in self._nodes:
            return False
        row = self._nodes.row(node)
        if not self._passing >> row & 1 or not (is_known or self._verdicts.candidates().rows >> row & 1):
            return False
        return verdicts[node] is None

    def misfits(self) -> Rows:
        """Return the Nodes that cannot take the pod. Much faster than `fits` for each node.

        Unless the pod is counted already, nodes that lack CPU, memory or room for one more pod may be left out.
        """
        passing = self._passing & self._verdicts.candidates().rows & self._nodes.labels.every_row
        asked = node_index.row_numbers(passing & ~self._sure())
        unfit = node_index.of_rows(row for row in asked if not self.fits(self._nodes.at(row).name))
        return self._nodes.labels.every_row & ~passing | unfit


class SchedulerCache:
    """All nodes and pods. Not thread-safe.

    gpushare's own resources are checked only where the ledger still has room (`is_full`), because a kubelet may offer
    less than the ledger has: briefly after a restart, or while a GPU is unhealthy. `knows_claims`: whether all claims
    were put here, so that others do not exist.
    """

    def __init__(self, *, is_full: IsFull = lambda *_: False, knows_claims: Callable[[], bool] = lambda: False) -> None:
        self._is_full = is_full
        self._knows_claims = knows_claims
        self._listeners: list[Callable[[str], object]] = []
        self._nodes = NodeIndex()
        self._groups = PodClasses()
        self._infos: dict[str, NodeInfo] = {}
        self._pod_infos: dict[Hashable, PodInfo] = {}
        self._repelling: dict[tuple[Term, ...], collections.Counter[str]] = {}  # anti-affinity -> nodes
        self._attaching = AttachFilter()
        self._reach = VolumeReach()
        self._verdicts: collections.OrderedDict[PodKey, FilterResults] = collections.OrderedDict()
        self._offering: Rows = node_index.NONE  # nodes that `_offers`, but for those of `_changed`
        self._changed: set[str] = set()

    def node_spec(self, name: str) -> NodeSpec | None:
        """Return the Node with this name, or None."""
        return self._nodes.get(name)

    def row(self, name: str) -> int:
        """Return the row of the Node with this name, or -1."""
        return self._nodes.row(name) if name in self._nodes else -1

    def rows(self, names: Iterable[str]) -> Rows:
        """Return the rows of the Nodes with these names."""
        return node_index.of_rows(self._nodes.row(name) for name in names if name in self._nodes)

    def node_specs(self) -> Iterator[NodeSpec]:
        """Iterate over all Nodes."""
        return iter(self._nodes.values())

    def put_node_spec(self, name: str, spec: NodeSpec | None) -> None:
        """Add, replace or (None) remove a Node."""
        if (before := self._nodes.get(name)) == spec:
            return
        if spec is None:
            self._nodes.remove(name)
            self._leave(name)
        else:
            self._nodes.put(name, spec)
        for changed in {name, *self._nodes.namesakes(before), *self._nodes.namesakes(spec)}:
            self.forget(changed)

    def on_change(self, listener: Callable[[str], object]) -> None:
        """Call `listener` with the name of each node that changes."""
        self._listeners.append(listener)

    def put(self, key: Hashable, pod_info: PodInfo | None) -> bool:
        """Add, replace or (None) remove a pod; return whether usage changed anywhere."""
        before = self._pod_infos.get(key)
        if before == pod_info:
            return False
        if before is not None:
            info = self._infos[before.node]
            info.change(before, -1)
            self._groups.remove(before, self._nodes.row(before.node))
            if not info.count:
                del self._infos[before.node]
            self._leave(before.node)
            self._repel(before, -1)
            if before.mounts:
                self._attaching.remove(key, before)
            del self._pod_infos[key]
            self.forget(before.node)
        if pod_info is not None:
            self._pod_infos[key] = pod_info
            self._infos.setdefault(pod_info.node, NodeInfo()).change(pod_info, 1)
            self._groups.add(pod_info, self._nodes.row(pod_info.node))
            self._repel(pod_info, 1)
            if pod_info.mounts:
                self._attaching.add(key, pod_info)
            self.forget(pod_info.node)
        return True

    def put_storage(
        self, name: volumes.Name, before: volumes.StorageObject | None, after: volumes.StorageObject | None
    ) -> None:
        """Add, replace or (None) remove a claim, volume, class, CSINode or attachment. name: namespace and name."""
        self._reach.put(name, before, after)
        if after is not None:
            self._attaching.put(name, after)
        elif before is not None:
            self._attaching.drop(name, before)

    def count_volumes(self, most: int) -> bool:
        """Recount the volumes of at most `most` nodes ahead of the next filter; return whether any are left."""
        return self._attaching.count(most)

    def unknown_claim(self, relations: PodAffinity) -> str:
        """Return the first claim of a pod that was not put here, or an empty string."""
        return self._attaching.missing(relations.namespace, relations.mounts)

    def forget(self, node: str) -> None:
        """Drop cached results for this node after a change there, in the ledger or elsewhere."""
        for verdicts in self._verdicts.values():
            verdicts.pop(node, None)
        self._changed.add(node)
        for listener in self._listeners:
            listener(node)

    def pod_info(self, key: Hashable) -> PodInfo | None:
        """Return a counted pod, or None."""
        return self._pod_infos.get(key)

    @contextlib.contextmanager
    def without(self, keys: Iterable[Hashable]) -> Iterator[None]:
        """Leave these pods out of what nodes use while the block runs; do not await in it."""
        left = {key: found for key in keys if (found := self._pod_infos.get(key)) is not None}
        for key in left:
            self.put(key, None)
        try:
            yield
        finally:
            for key, found in left.items():
                self.put(key, found)

    def info(self, node: str) -> NodeInfo:
        """Return the usage of a node."""
        return self._infos.get(node, node_info.EMPTY)

    def room(self, node: str) -> tuple[int, int, int] | None:
        """Return free CPU (milli-CPUs), memory (bytes) and pods of a node; None if its allocatable is unknown."""
        spec = self._nodes.get(node)
        if spec is None or spec.allocatable is None:
            return None
        there, has = self.info(node), spec.allocatable
        cpu, memory = (has.get(key, 0) - there.amounts.get(key, 0) for key in (pod_requests.CPU, pod_requests.MEMORY))
        return cpu, memory, has.get(pod_requests.PODS, 0) - there.count

    def node_filter(self, shape: PodKey, relations: PodAffinity, *, itself: Hashable = None) -> NodeFilter:
        """Return the node filter for a pod. `itself`: the pod's key if it is counted already; it is then ignored."""
        verdicts = self._verdicts.get(shape)
        if verdicts is None:
            verdicts = self._verdicts[shape] = FilterResults(
                shape, self._nodes, lambda node, verdicts: self._check(shape, node, None, verdicts)
            )
            if len(self._verdicts) > SHAPES_KEPT:
                self._verdicts.popitem(last=False)
        self._verdicts.move_to_end(shape)
        own = self._pod_infos.get(itself) if itself is not None else None
        with self._without(itself, own):
            rules = affinity_rules.rules(
                relations,
                shape,
                nodes=self._nodes,
                groups=self._groups,
                repelling=self._repelling,
                itself=own,
                missing=self.unknown_claim(relations) if relations.mounts and self._knows_claims() else "",
                full=self._attaching.full(relations.namespace, relations.mounts),
                reach=self._reach.of,
            )
        there = {own.node: self._check(shape, own.node, own, verdicts)} if own is not None else {}
        return NodeFilter(self._nodes, verdicts, there, rules, functools.partial(self._sure, shape, own))

    def _sure(self, shape: PodKey, own: PodInfo | None) -> Rows:
        """Return the nodes that only a lack of CPU, memory or pods, an affinity rule or a static filter can reject."""
        is_plain = own is None and not shape.ports and not (shape.own and self._nodes.doubled)
        if not is_plain or not _COUNTED.issuperset(dict(shape.amounts)):
            return node_index.NONE
        for name in [*self._changed]:
            self.count_offer(name)
        return self._offering

    def count_offer(self, node: str) -> None:
        """Check a changed node's offer now; otherwise the next refusal checks it, with all others that have changed."""
        if node not in self._changed:
            return
        self._changed.discard(node)
        if node in self._nodes:
            row = 1 << self._nodes.row(node)
            self._offering = self._offering | row if self._offers(node) else self._offering & ~row

    def _offers(self, name: str) -> bool:
        """Whether the kubelet offers all that the ledger has free."""
        allocatable, used = self._nodes[name].allocatable, self.info(name).amounts
        return allocatable is None or all(
            self._is_full(name, ((resource, allocatable.get(resource, 0) - used.get(resource, 0) + 1),))
            for resource in _OWN
        )

    def _check(self, shape: PodKey, node: str, own: PodInfo | None, verdicts: FilterResults) -> str | None:
        spec = self._nodes.get(node)
        if spec is None:
            return NO_NODE
        info = self._infos.get(node, node_info.EMPTY)
        if own is not None:
            info = info.without(own)
        candidates = verdicts.candidates()
        if not candidates.rows >> self._nodes.row(node) & 1:
            return candidates.why_not(spec)
        if shape.own and self._nodes.doubled and (others := self._nodes.namesakes(spec)):
            return f"has the same label {contract.HOSTNAME_LABEL} as {others[0]}, so a pod can be pinned to neither"
        reason = node_info.why_no_room(spec, info, shape)
        if reason is None and shape.own and not self._is_full(node, shape.own):
            return node_info.why_not_offered(spec, info, shape.own)
        return reason

    @contextlib.contextmanager
    def _without(self, key: Hashable, own: PodInfo | None) -> Iterator[None]:
        """Leave this pod out of the pod groups and the volume counts while the block runs."""
        if own is None:
            yield
            return
        row = self._nodes.row(own.node)
        self._groups.remove(own, row)
        if own.mounts:
            self._attaching.remove(key, own)
        try:
            yield
        finally:
            self._groups.add(own, row)
            if own.mounts:
                self._attaching.add(key, own)

    def _leave(self, name: str) -> None:
        if name not in self._infos:
            self._nodes.release(name)

    def _repel(self, pod: PodInfo, sign: int) -> None:
        if not pod.anti_affinity:
            return
        nodes = self._repelling.setdefault(pod.anti_affinity, collections.Counter())
        nodes[pod.node] += sign
        if not nodes[pod.node]:
            del nodes[pod.node]
        if not nodes:
            del self._repelling[pod.anti_affinity]
