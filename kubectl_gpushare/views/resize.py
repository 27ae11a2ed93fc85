"""`resize`: a placed pod's current and new amounts, and whether its GPUs have room, by the placer's own code.

The plugin changes only the pod's annotations; the placer changes the ledger, and the node's agent the limits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from gpushare import contract, errors, ledger, pod, quantity, resizing
from gpushare import request as requests
from gpushare.allocation import Allocation, GivenShare
from gpushare.gpunode import GpuNode
from gpushare.resizing import ResizeCause, Shares
from gpushare.share_range import UNBOUNDED, ShareRange
from kubectl_gpushare.output.values import Document, Page, field


@dataclasses.dataclass(frozen=True, slots=True)
class ResizePlan:
    """The annotations to set, the resulting shares, and the placer's answer; `before`: the current annotations."""

    node: GpuNode
    entry: Allocation
    changes: Mapping[str, str]
    before: Mapping[str, str | None]
    desired: Shares
    waits_for: str
    cause: ResizeCause


def plan(
    manifest: pod.PodJson,
    node: GpuNode,
    entry: Allocation,
    amounts: Mapping[str, str],
    container: str = "",
    *,
    allowed: ShareRange = UNBOUNDED,
) -> ResizePlan:
    """Return the plan for these values by key, of `container` or of the only share. Raises GpushareError.

    allowed: the range of the pod's namespace.
    """
    suffix = _suffix(manifest, container)
    changes = {key + suffix: value for key, value in amounts.items()}
    known = pod.annotations_of(manifest)
    changed = {**manifest, "metadata": {**manifest["metadata"], "annotations": {**known, **changes}}}
    request = requests.parse(changed)
    desired = resizing.asked(request, entry, node)
    if desired != entry.shares and (excess := allowed.excess(request)) is not None:
        raise errors.GpushareError(excess)
    step = resizing.step(node, entry.id, desired)
    before = {key: known.get(key) for key in changes}
    return ResizePlan(node, entry, changes, before, desired, step.waits_for, step.cause)


def beside(plan: ResizePlan) -> str:
    if any(key == contract.MEMORY or key.startswith(f"{contract.MEMORY}.") for key in plan.changes):
        return ""
    held = {(share.containers, share.gpu_uuids): share.memory_bytes for share in plan.entry.shares}
    for share in plan.desired:
        before = held.get((share.containers, share.gpu_uuids), share.memory_bytes)
        if before != share.memory_bytes:
            kept, now = quantity.format_bytes(before), quantity.format_bytes(share.memory_bytes)
            return (
                f"its memory goes from {kept} to {now}, as it follows the request where no {contract.MEMORY} is "
                f"written: to keep it add --memory {quantity.format_exactly(before)}"
            )
    return ""


def pending(manifest: pod.PodJson, node: GpuNode, entry: Allocation) -> tuple[Shares, str] | None:
    """Return the shares a pod asks for, and why it does not hold them yet; None if it holds what it asks for."""
    try:
        desired = resizing.asked(requests.parse(manifest), entry, node)
    except errors.GpushareError as error:
        return entry.shares, str(error)
    if desired == entry.shares:
        return None
    reason = pod.annotations_of(manifest).get(contract.REASON, "").removeprefix(resizing.WAITING)
    return desired, resizing.step(node, entry.id, desired).waits_for or reason or "the placer has not written it yet"


def _suffix(manifest: pod.PodJson, container: str) -> str:
    """Return the suffix of this container's keys: `.NAME`, or empty for the pod's keys. Raises LedgerError."""
    annotations, names = pod.annotations_of(manifest), pod.container_names(manifest)
    own = [name for name in names if any(f"{key}.{name}" in annotations for key in contract.PER_CONTAINER_KEYS)]
    sharers: list[str] = []
    if any(key in annotations for key in contract.SHARE_KEYS):
        listed = annotations.get(contract.CONTAINER, pod.default_container(manifest)).split(",")
        sharers = [name for name in (word.strip() for word in listed) if name not in own]
    who = "/".join(pod.namespaced_name(manifest))
    if container and container not in (*own, *sharers):
        raise errors.LedgerError(
            f"container {errors.quoted(container)} of {who} has no share: those that have are "
            f"{', '.join([*sharers, *own])}"
        )
    if not container and len(own) + bool(sharers) != 1:
        raise errors.LedgerError(
            f"{who} has several shares: say with --container whose, {' or '.join([*sharers[:1], *own])}"
        )
    chosen = container or (sharers or own)[0]
    return f".{chosen}" if chosen in own else ""


def page(manifest: pod.PodJson, plan: ResizePlan) -> Page:
    verdict = "it holds that already"
    if plan.entry.shares != plan.desired:
        verdict = {
            ResizeCause.NOTHING: "yes, at once",
            ResizeCause.ROOM: f"no: {plan.waits_for}",
            ResizeCause.AGENT: "yes, if no more memory than that is in use",
            ResizeCause.USE: f"not yet: {plan.waits_for}",
        }[plan.cause]
    used = ledger.use(plan.node)
    free = [
        f"{plan.node.name}/{gpu.index}: {quantity.format_compute(max(0, 100 - used[gpu.uuid].request_percent))} GPU "
        f"with {quantity.format_bytes(max(0, gpu.memory_bytes - used[gpu.uuid].memory_bytes))}"
        for gpu in plan.node.gpus
        if gpu.uuid in plan.entry.gpu_uuids
    ]
    return (
        *field("Pod", "/".join(pod.namespaced_name(manifest))),
        *field("Holds", resizing.amounts(plan.entry.shares)),
        *field("Would Hold", resizing.amounts(plan.desired)),
        *field("Free Beside It", *free),
        *field("Fits", verdict, style="bad" if plan.cause is ResizeCause.ROOM else "good"),
        *field("Annotations", *(f'{key}: "{value}"' for key, value in plan.changes.items())),
    )


def document(manifest: pod.PodJson, plan: ResizePlan) -> Document:
    namespace, name = pod.namespaced_name(manifest)
    return {
        "namespace": namespace,
        "name": name,
        "node": plan.node.name,
        "annotations": dict(plan.changes),
        "holds": [_share(share) for share in plan.entry.shares],
        "wouldHold": [_share(share) for share in plan.desired],
        "fits": plan.cause is not ResizeCause.ROOM,
        "waitsFor": plan.cause.value,
        "reason": plan.waits_for,
    }


def _share(share: GivenShare) -> Document:
    return {
        "containers": list(share.containers),
        "requestPercent": share.request_percent,
        "limitPercent": share.limit_percent,
        "memoryBytes": share.memory_bytes,
    }
