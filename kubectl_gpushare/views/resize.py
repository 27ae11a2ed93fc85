"""`resize`: a pod's current and new amounts, and whether its GPUs have room for them."""

from __future__ import annotations

from gpushare import ledger, pod, quantity, resizing
from gpushare.allocation import GivenShare
from gpushare.resizing import ResizeCause
from kubectl_gpushare.output import documents
from kubectl_gpushare.output.page import Page, field
from kubectl_gpushare.planning.resize_plan import ResizePlan


def page(manifest: pod.PodJson, plan: ResizePlan) -> Page:
    """Return the plan as a page."""
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
        *field("Fits", *_verdict(plan), style="bad" if plan.cause is ResizeCause.ROOM else "good"),
        *field("Annotations", *(f'{key}: "{value}"' for key, value in plan.changes.items())),
    )


def document(manifest: pod.PodJson, plan: ResizePlan) -> documents.Document:
    """Return the plan as the content of a `Resize`."""
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


def _verdict(plan: ResizePlan) -> tuple[str, ...]:
    if plan.entry.shares == plan.desired:
        return ("it holds that already",)
    return {
        ResizeCause.NOTHING: ("yes, at once",),
        ResizeCause.ROOM: (f"no: {plan.waits_for}",),
        ResizeCause.AGENT: ("yes, if no more memory than that is in use",),
        ResizeCause.USE: (f"not yet: {plan.waits_for}",),
    }[plan.cause]


def _share(share: GivenShare) -> documents.Document:
    return {
        "containers": list(share.containers),
        "requestPercent": share.request_percent,
        "limitPercent": share.limit_percent,
        "memoryBytes": share.memory_bytes,
    }
