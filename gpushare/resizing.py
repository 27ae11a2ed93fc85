"""Resizing: change the amounts of a share in place. Values in, values out, as in the ledger.

The annotations have the desired amounts, the ledger the current ones. Growth is written when there is room for all of
it. Less memory takes two steps: first `shrink_to_bytes` is written, while the memory counts as before; once the agent
enforces the smaller limit, the memory is reduced. So memory that a process could still allocate never counts as free. A
share never moves to another GPU.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import Final

from gpushare import contract, errors, ledger, mig_shares, pod, quantity
from gpushare.allocation import Allocation, GivenShare, Isolation
from gpushare.gpunode import GpuNode, Resize
from gpushare.request import Request

Shares = tuple[GivenShare, ...]

WAITING: Final = "is not resized yet: "  # prefix of the message of a pod whose resize waits


class ResizeCause(enum.StrEnum):
    """The reason why a share does not have the desired amounts yet."""

    NOTHING = ""
    ROOM = "room"  # other pods hold it
    AGENT = "agent"  # the agent does not enforce the smaller memory limit yet
    USE = "use"  # the pod uses more memory than desired


@dataclasses.dataclass(frozen=True, slots=True)
class ResizeStep:
    """The node after all that can be done now (the same object if that is nothing), and what is still missing."""

    node: GpuNode
    waits_for: str = ""  # a clause with numbers; empty once the share is as desired
    cause: ResizeCause = ResizeCause.NOTHING


def asked(request: Request, entry: Allocation, node: GpuNode) -> Shares:
    """Return the allocation's shares with the amounts that `request` asks for on their GPUs.

    Steps come from the request, too, because a release that does not know them may have dropped them.
    Raises LedgerError if the request has other containers, or another number of GPUs, than the allocation, or another
    limit for a running MPS client.
    """
    held: collections.Counter[tuple[str, ...]] = collections.Counter()
    for share in entry.shares:
        held[share.containers] += len(share.gpu_uuids)
    demands = {demand.containers: demand for demand in request.demands}
    wanted = {containers: demand.gpus for containers, demand in demands.items()}
    if wanted != held:
        raise errors.LedgerError(
            f"its annotations request shares of {_counts(wanted)}, but it has shares of {_counts(held)}: that cannot "
            "change on an existing pod, so restore the annotations, or delete and recreate the pod"
        )
    gone = missing(entry, node)
    if gone:
        raise errors.LedgerError(gone)
    gpus = node.gpu_by_uuid()
    shares = []
    for share in entry.shares:
        demand = demands[share.containers]
        amounts = demand.share.on_all([gpus[uuid].memory_bytes for uuid in share.gpu_uuids])
        if entry.labels.isolation is Isolation.MPS and demand.share.limit_percent != share.limit_percent:
            held_limit = quantity.format_compute(share.limit_percent)
            raise errors.LedgerError(
                f"its limit is {held_limit}, and the limit of an MPS client cannot change while it runs: set "
                f"{contract.LIMIT} to {held_limit}, or delete and recreate the pod"
            )
        cut = {gpus[uuid].sm_partitions for uuid in share.gpu_uuids} if entry.labels.isolation is Isolation.MPS else {0}
        if any(cut) and demand.share.request_percent != share.request_percent:
            held_request = quantity.format_compute(share.request_percent)
            raise errors.LedgerError(
                f"its request is {held_request}, and its SM partition cannot change while it runs: set "
                f"{contract.REQUEST} to {held_request}, or delete and recreate the pod"
            )
        desired = GivenShare(share.containers, share.gpu_uuids, steps=demand.steps, **amounts)
        if share.mig is not None:
            desired = mig_shares.on_device(desired, share.mig)
            is_same = dataclasses.replace(share, shrink_to_bytes=None, steps=demand.steps) == desired
            if not is_same or not mig_shares.is_cut_for(gpus[share.gpu_uuids[0]], demand.share, share.mig):
                raise errors.LedgerError(
                    f"it has the MIG device {share.mig.profile}, and the amounts of such a share cannot change while "
                    "it runs: restore the annotations, or delete and recreate the pod"
                )
        shares.append(desired)
    return tuple(shares)


def missing(entry: Allocation, node: GpuNode) -> str:
    """Return a clause that names a GPU of the allocation that the node no longer has; empty if all exist."""
    gpus = node.gpu_by_uuid()
    gone = next((uuid for uuid in entry.gpu_uuids if uuid not in gpus), None)
    return f"{node.name} no longer has GPU {gone}" if gone is not None else ""


def step(node: GpuNode, identity: str, desired: Shares) -> ResizeStep:
    """Move this allocation one step towards `desired`, the result of `asked`.

    Growth happens over all shares or not at all, and shrinking begins only if all desired amounts fit afterwards.
    Raises LedgerError if there is no such allocation.
    """
    before = next((allocation for allocation in node.allocations if allocation.id == identity), None)
    if before is None:
        raise errors.LedgerError(f"{node.name} no longer has the allocation {identity}")
    resizes = {resize.share: resize for resize in node.resizes if resize.allocation == identity}
    held = tuple(_shrunk(share, resizes.get(at)) for at, share in enumerate(before.shares))
    marks = tuple(_mark(have, want, resizes.get(at)) for at, (have, want) in enumerate(zip(held, desired, strict=True)))
    grown = tuple(
        dataclasses.replace(want, memory_bytes=max(have.memory_bytes, want.memory_bytes), shrink_to_bytes=mark)
        for have, want, mark in zip(held, desired, marks, strict=True)
    )
    lacks = ""
    if not _lacking(node, before, grown):
        chosen = grown
    elif not (lacks := _lacking(node, before, desired)):
        chosen = _marked(held, marks)  # the rest fits once these have shrunk
    else:
        # Begin nothing new, and cancel shrinks that are no longer desired.
        begun = tuple(have.shrink_to_bytes for have in held)
        chosen = _marked(held, tuple(mark if mark == old else None for mark, old in zip(marks, begun, strict=True)))
    after = node if chosen == before.shares else _with(node, before, chosen)
    if lacks:
        return ResizeStep(after, lacks, ResizeCause.ROOM)
    shrinking = [
        _waits(node, have, want, resizes.get(at))
        for at, (have, want) in enumerate(zip(chosen, desired, strict=True))
        if have.memory_bytes > want.memory_bytes
    ]
    return ResizeStep(after, *max(shrinking, key=lambda wait: wait[1] is ResizeCause.USE, default=()))


def step_all(node: GpuNode, requests: Iterable[tuple[str, Request]]) -> GpuNode:
    """Move each of these allocations one step, in order; skip invalid requests."""
    entries = {entry.id: entry for entry in node.allocations}
    for identity, request in requests:
        if identity in entries:
            with contextlib.suppress(errors.LedgerError):
                node = step(node, identity, asked(request, entries[identity], node)).node
    return node


def amounts(shares: Shares) -> str:
    """Format for a sentence: `0.5 GPU (limit 0.8) with 8Gi for main and idle compute with 1Gi for side`."""
    said = {}
    for share in shares:
        compute = f"{quantity.format_compute(share.request_percent)} GPU" if share.request_percent else "idle compute"
        limit = f" (limit {quantity.format_compute(share.limit_percent)})" if share.limit_percent < 100 else ""
        most = f" (limit {quantity.format_bytes(share.memory_limit_bytes)})" if share.memory_limit_bytes else ""
        said[share.containers] = f"{compute}{limit} with {quantity.format_bytes(share.memory_bytes)}{most}"
    if len(said) == 1:
        return next(iter(said.values()))
    return " and ".join(f"{text} for {', '.join(containers)}" for containers, text in said.items())


def _shrunk(share: GivenShare, resize: Resize | None) -> GivenShare:
    """Return the share with the memory that the agent enforces already."""
    if resize is None or share.shrink_to_bytes is None or resize.memory_bytes != share.shrink_to_bytes:
        return share
    return dataclasses.replace(share, memory_bytes=resize.memory_bytes, shrink_to_bytes=None)


def _mark(have: GivenShare, want: GivenShare, resize: Resize | None) -> int | None:
    """Return the smaller memory to mark the share with, unless the agent's next report may answer an earlier mark."""
    may = have.shrink_to_bytes == want.memory_bytes or resize is None or resize.memory_bytes >= have.memory_bytes
    return want.memory_bytes if may and want.memory_bytes < have.memory_bytes else None


def _marked(shares: Shares, marks: tuple[int | None, ...]) -> Shares:
    return tuple(dataclasses.replace(share, shrink_to_bytes=mark) for share, mark in zip(shares, marks, strict=True))


def _waits(node: GpuNode, have: GivenShare, want: GivenShare, resize: Resize | None) -> tuple[str, ResizeCause]:
    least = quantity.format_bytes(want.memory_bytes)
    if resize and resize.memory_bytes >= have.memory_bytes and resize.used_bytes > want.memory_bytes:
        return f"it uses {quantity.format_bytes(resize.used_bytes)}, more than the requested {least}", ResizeCause.USE
    return f"the agent on {node.name} does not enforce {least} yet", ResizeCause.AGENT


def _with(node: GpuNode, entry: Allocation, shares: Shares) -> GpuNode:
    after = dataclasses.replace(entry, shares=shares)
    return dataclasses.replace(
        node, allocations=tuple(after if allocation.id == entry.id else allocation for allocation in node.allocations)
    )


def _lacking(node: GpuNode, entry: Allocation, shares: Shares) -> str:
    """Return what the GPUs lack for these shares in place of the entry's; empty if there is room."""
    before, after = ledger.use(node), ledger.use(_with(node, entry, shares))
    gpus = node.gpu_by_uuid()
    problems = []
    for uuid in entry.gpu_uuids:
        more_percent = after[uuid].request_percent - before[uuid].request_percent
        more_bytes = after[uuid].memory_bytes - before[uuid].memory_bytes
        grows = more_percent > 0 or more_bytes > 0
        if uuid not in gpus:
            if grows:
                problems.append(f"{node.name} no longer has GPU {uuid}")
            continue
        gpu = gpus[uuid]
        where = f"{node.name}/{gpu.index}"
        if gpu.closed and grows:
            problems.append(f"{where} is on a node that takes no new pods: {gpu.closed}")
        if gpu.unowned and grows:
            problems.append(f"{where} belongs to another device plugin")
        if not gpu.healthy and grows:
            problems.append(f"{where} is unhealthy: {gpu.health_reason or 'reason unknown'}")
        if more_percent > 0 and after[uuid].request_percent > 100:
            free, more = map(quantity.format_compute, (max(0, 100 - before[uuid].request_percent), more_percent))
            problems.append(f"{where} has {free} of its compute free, {more} more is requested")
        if more_bytes > 0 and after[uuid].memory_bytes > gpu.memory_bytes:
            free_bytes = max(0, gpu.memory_bytes - before[uuid].memory_bytes)
            free, more = map(quantity.format_bytes, (free_bytes, more_bytes))
            problems.append(f"{where} has {free} of memory free{before[uuid].lent_clause}, {more} more are requested")
    return "; ".join(problems)


def _counts(gpus: Mapping[tuple[str, ...], int]) -> str:
    """Format as `1 GPU for main and 2 GPUs for side`."""
    return " and ".join(f"{quantity.counted(count, 'GPU')} for {', '.join(names)}" for names, count in gpus.items())


def was_resized(manifest: pod.PodJson, entry: Allocation) -> bool:
    """Whether a recreated pod would get other amounts, because this one was resized or waits to be."""
    if contract.HELD in pod.annotations_of(manifest):
        return True
    created = {
        str(each.get("name")): {str(setting.get("name")): setting.get("value") for setting in each.get("env") or ()}
        for each in (*pod.containers(manifest), *pod.init_containers(manifest))
    }
    memory: dict[str, tuple[int, int]] = {}
    for share in entry.shares:
        name = share.containers[0]
        # A percentage of memory is different bytes on different models; the container's variable has the smallest.
        held = share.memory_bytes, share.memory_limit_bytes or 0
        memory[name] = min(held, memory.get(name, held))
        environment = created.get(name, {})
        for key, percent in ((contract.ENV_REQUEST, share.request_percent), (contract.ENV_LIMIT, share.limit_percent)):
            if environment.get(key, str(percent)) != str(percent):
                return True
    return any(
        contract.ENV_MEMORY in environment
        and (environment[contract.ENV_MEMORY], environment.get(contract.ENV_MEMORY_LIMIT, "0")) != tuple(map(str, held))
        for environment, held in ((created.get(name, {}), held) for name, held in memory.items())
    )
