"""How many pods fit: pods are placed one after the other on a simulated cluster, and removed again."""

from __future__ import annotations

import collections
import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gpushare import isolation, mig_shares, pod, resource_quota
from gpushare.allocation import Isolation
from gpushare.gpu_capacity import Fragmentation
from gpushare.placement import Placement, exclusive_gpus
from gpushare.refusal import Cause, Refusal
from gpushare.resource_quota import Allowance
from gpushare.whatif import world as worlds
from gpushare.whatif.world import RequestingPod, World
from kubectl_gpushare.planning import remedies
from kubectl_gpushare.planning.remedies import Remedy

MAX = 1000  # copies of one pod that are tried

Allowances = Mapping[str, tuple[Allowance, ...]]  # by namespace
_Left = dict[str, tuple[Allowance, ...]]  # the same, while pods are placed
_NO_QUOTAS: Final[Allowances] = types.MappingProxyType({})


@dataclasses.dataclass(frozen=True, slots=True)
class PodBatch:
    """Several equal pods."""

    name: str
    asked: RequestingPod
    count: int


@dataclasses.dataclass(frozen=True, slots=True)
class GivenIsolation:
    """How many of equal pods get this isolation, and why, as a clause."""

    isolation: Isolation
    pods: int
    why: str
    shown: str  # with the profile of a MIG device


@dataclasses.dataclass(frozen=True, slots=True)
class FitResult:
    """The places of the pods that fit, in order, and why the next one does not."""

    wanted: PodBatch
    gpus: tuple[str, ...]
    refusal: Refusal | None
    changes: tuple[Remedy, ...]  # with each of them the next pod would fit
    isolations: tuple[GivenIsolation, ...] = ()

    @property
    def missing(self) -> int:
        return self.wanted.count - len(self.gpus)


@dataclasses.dataclass(frozen=True, slots=True)
class CapacityAnswer:
    """The results of all batches."""

    fits: tuple[FitResult, ...]
    before: Fragmentation
    after: Fragmentation
    more: int | None  # pods like the last batch's would fit; None if some pods do not fit
    no_more: Refusal | None = None  # why not one more than that

    @property
    def all_fit(self) -> bool:
        return not any(fit.missing for fit in self.fits)


def answer(world: World, wanted: Sequence[PodBatch], allowances: Allowances = _NO_QUOTAS) -> CapacityAnswer:
    """Place the pods in this order, as the webhook would; restore the world afterwards."""
    undone: list[Callable[[], None]] = []
    left = dict(allowances)
    world.bounds = {name: exclusive_gpus.bound_of(name, quotas) for name, quotas in left.items()}
    before = world.fragmentation()
    try:
        fits = tuple(_fit(world, batch, left, undone) for batch in wanted)
        after = world.fragmentation()
        if not wanted or any(fit.missing for fit in fits):
            return CapacityAnswer(fits, before, after, None)
        more, refusal = _as_many(world, wanted[-1].asked, MAX, left, undone)
        return CapacityAnswer(fits, before, after, len(more), refusal)
    finally:
        world.bounds = {}
        for undo in reversed(undone):
            undo()


def _fit(world: World, batch: PodBatch, left: _Left, undone: list[Callable[[], None]]) -> FitResult:
    placements, refusal = _as_many(world, batch.asked, batch.count, left, undone)
    gpus = tuple(worlds.gpus(placed, world.views) for placed in placements)
    asked = batch.asked.request
    kinds = ((placed.isolation, mig_shares.described(placed.isolation, placed.shares)) for placed in placements)
    there = {world.views[one.node].node.gpu_by_uuid()[share.gpu_uuids[0]] for one in placements for share in one.shares}
    given = (
        GivenIsolation(
            kind,
            count,
            isolation.why(asked, world.profile.isolation, kind) + isolation.in_partition(kind, there),
            shown,
        )
        for (kind, shown), count in collections.Counter(kinds).items()
    )
    changes: Sequence[Remedy] = ()
    if refusal is not None and refusal.cause is not Cause.QUOTA:  # rejected by a quota, however much is free
        whole = world.refuse(batch.asked.manifest, batch.asked.request)
        changes = remedies.all_of(world, batch.asked, whole.rejected) if isinstance(whole, Refusal) else ()
    return FitResult(batch, gpus, refusal, tuple(changes), tuple(given))


def _as_many(
    world: World, asked: RequestingPod, count: int, left: _Left, undone: list[Callable[[], None]]
) -> tuple[tuple[Placement, ...], Refusal | None]:
    placements: list[Placement] = []
    amounts = resource_quota.asked(asked.manifest, asked.request)
    uncounted = resource_quota.uncounted(left.get(asked.namespace, ()), asked.manifest, asked.request)
    if uncounted is not None:
        return (), Refusal(uncounted, cause=Cause.QUOTA)
    while len(placements) < count:
        quotas = left.get(asked.namespace, ())
        lacks = next(filter(None, (quota.lacks(amounts) for quota in quotas)), None)
        if lacks is not None:
            return tuple(placements), Refusal(lacks, cause=Cause.QUOTA)
        copy = _copy(asked.manifest, len(undone))
        outcome = world.place(copy, asked.request)
        if not isinstance(outcome, Placement):
            return tuple(placements), outcome
        placements.append(outcome)
        undone.append(world.assign(copy, asked.request, outcome))
        left[asked.namespace] = tuple(quota.after(amounts) for quota in quotas)
    return tuple(placements), None


def _copy(manifest: pod.PodJson, number: int) -> pod.PodJson:
    metadata = {key: value for key, value in (manifest.get("metadata") or {}).items() if key != "uid"}
    return {**manifest, "metadata": {**metadata, "name": f"{metadata.get('name') or 'pod'}-copy-{number}"}}
