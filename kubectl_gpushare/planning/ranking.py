"""Ranks the places where a pod could go by placement's preference, each without those before it."""

from __future__ import annotations

import collections
import dataclasses

from gpushare import ledger
from gpushare.gpu_capacity import Fragmentation
from gpushare.placement import Placement, explanation, filters
from gpushare.whatif import world as worlds
from gpushare.whatif.world import RequestingPod, World


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """A possible place for a pod, and the cluster's fragmentation with the pod there."""

    placement: Placement
    gpus: str
    after: Fragmentation
    left: tuple[int, int]  # compute in per cent and memory in bytes, on the first of its GPUs


def choices(world: World, asked: RequestingPod, *, most: int) -> list[Choice]:
    """Return the best places, at most `most`: by GPU if the pod wants one GPU, else by node."""
    ranked: list[Choice] = []
    alone = len(asked.request.demands) == 1 and asked.request.demands[0].gpus == 1
    taken_nodes: set[str] = set()
    node_filter = world.node_filter(asked.manifest)
    request = asked.request
    while len(ranked) < most:
        answer = world.place(
            asked.manifest,
            request,
            node_filter=lambda name: "was told before" if name in taken_nodes else node_filter(name),
        )
        if not isinstance(answer, Placement):
            break
        ranked.append(_choice(world, asked, answer))
        if alone:
            known = request.constraints
            uuids = (*known.not_uuids, *answer.shares[0].gpu_uuids)
            request = dataclasses.replace(request, constraints=dataclasses.replace(known, not_uuids=uuids))
        else:
            taken_nodes.add(answer.node)
    return ranked


def counts(world: World, asked: RequestingPod) -> tuple[int, dict[str, int]]:
    """Return `(GPUs that fit, GPUs or nodes that each rule rejects)`, for the first demand of the request."""
    node_filter = world.node_filter(asked.manifest)
    demand = asked.request.demands[0]
    fits = 0
    ruled_out: collections.Counter[str] = collections.Counter()
    for view in world.views.values():
        if view.node.gpus and node_filter(view.node.name) is not None:
            ruled_out[explanation.NODE_RULE] += 1
            continue
        for gpu, used in view.gpus():
            verdict = filters.reject(filters.FilterInput(gpu, used, demand.share, asked.request.constraints))
            fits += verdict is None
            if verdict is not None:
                ruled_out[verdict[0]] += 1
    return fits, dict(ruled_out)


def _choice(world: World, asked: RequestingPod, answer: Placement) -> Choice:
    undo = world.assign(asked.manifest, asked.request, answer)
    try:
        view = world.views[answer.node]
        uuid = answer.shares[0].gpu_uuids[0]
        used = view.used.get(uuid, ledger.NOTHING)
        gpu = view.node.gpu_by_uuid()[uuid]
        left = (100 - used.request_percent, gpu.memory_bytes - used.memory_bytes)
        return Choice(answer, worlds.gpus(answer, world.views), world.fragmentation(), left)
    finally:
        undo()
