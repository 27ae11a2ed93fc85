"""Builds the GPUNode's status from the driver's report and the previous status. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final

from deviceplugin.hardware import gpu_health, nvml, nvml_call
from deviceplugin.state.node_state import Unreadable
from gpushare import contract
from gpushare.gpu import Gpu
from gpushare.gpunode import Condition, GpuNode, Resize

MAX_CHARACTERS: Final = 32768  # the CRD's limit for a condition's message; some messages list pods


def merge(
    previous: Iterable[Gpu], seen: nvml.NvmlSnapshot, *, faults: gpu_health.Faults, held: Iterable[str]
) -> tuple[Gpu, ...]:
    """Return the node's GPUs, by index.

    previous: the known GPUs. A lost GPU does not report its UUID, so it is the known one with the same index. held:
    UUIDs that allocations use. A GPU that the driver no longer lists stays, unhealthy, while it is held, so that its
    users can see why.
    """
    gpus = {gpu.uuid: _with_fault(gpu, faults) for gpu in seen.gpus}
    unreadable = {gpu.index: gpu.reason for gpu in seen.unreadable if not gpu.bus_id}
    still_held = frozenset(held)
    for gpu in previous:
        if gpu.uuid in gpus:
            continue
        if gpu.index in unreadable:
            gpus[gpu.uuid] = _unhealthy(gpu, f"it does not answer: {unreadable[gpu.index]}")
        elif gpu.uuid in still_held:
            gpus[gpu.uuid] = _unhealthy(gpu, "the driver no longer lists it")
    return tuple(sorted(gpus.values(), key=lambda gpu: (gpu.index, gpu.uuid)))


def unidentified(gpus: Iterable[Gpu], seen: nvml.NvmlSnapshot) -> tuple[Unreadable, ...]:
    """Return the unreadable GPUs that match none of `gpus`: they have no UUID and were unknown before."""
    known: set[int | str] = set()
    for gpu in gpus:
        known |= {gpu.index, nvml_call.kernel_address(gpu.pci_bus_id)}
    return tuple(gpu for gpu in seen.unreadable if (gpu.bus_id or gpu.index) not in known)


def mark_silent(gpus: Iterable[Gpu], *, seconds: float) -> tuple[Gpu, ...]:
    """Return the GPUs as unhealthy, because the driver has not answered for so long."""
    why = f"the driver has not answered for {seconds:.0f} s: see the kernel's log for NVRM, and reboot if this persists"
    return tuple(_unhealthy(gpu, why) if gpu.healthy else gpu for gpu in gpus)


def conditions(
    gpus: Sequence[Gpu],
    *,
    previous: Sequence[Condition],
    now: str,
    unread: Sequence[Unreadable] = (),
    hung_up: str = "",
    stopped: str = "",
    more: Sequence[Condition] = (),
) -> tuple[Condition, ...]:
    """Return the node's condition Ready, and `more`.

    unread: GPUs that are missing from `gpus` because nothing could be read. now: RFC 3339, used only where a status
    changes. hung_up: why the kubelet does not list all devices. stopped: why no pod starts here even if the GPUs are
    healthy.
    """
    unhealthy = [gpu for gpu in gpus if not gpu.healthy]
    healthy_count, count = (
        len(gpus) - len(unhealthy),
        len(gpus) + sum(gpu.index is not None or gpu.bus_id != "" for gpu in unread),
    )
    summary = f"{healthy_count} of {count} GPUs are healthy" if count or not unread else "no GPU can be read"
    reasons = [f"GPU {gpu.index} ({gpu.uuid}): {gpu.health_reason}" for gpu in unhealthy]
    message = "; ".join((summary, *reasons, *map(str, unread)))
    is_whole = not unhealthy and not unread
    reason = "GpusHealthy" if is_whole else "SomeGpusUnhealthy" if healthy_count else "AllGpusUnhealthy"
    reason = reason if gpus or unread else "NoGpus"
    ready = Condition(contract.CONDITION_READY, "True" if healthy_count else "False", reason, message)
    if hung_up:
        ready = Condition(contract.CONDITION_READY, "False", "KubeletHangsUp", f"{hung_up}; {message}")
    if stopped:
        ready = Condition(contract.CONDITION_READY, "False", contract.REASON_AGENT_STOPPED, stopped)
    wanted = (ready, *more)
    since = {(condition.type, condition.status): condition.last_transition for condition in previous}
    return tuple(
        dataclasses.replace(
            condition,
            message=_truncate(condition.message),
            last_transition=since.get((condition.type, condition.status)) or now,
        )
        for condition in wanted
    )


def _truncate(message: str) -> str:
    return message if len(message) <= MAX_CHARACTERS else f"{message[: MAX_CHARACTERS - 1]}…"


def status(
    node: GpuNode,
    gpus: Sequence[Gpu],
    *,
    config: str,
    now: str,
    unread: Sequence[Unreadable] = (),
    hung_up: str = "",
    stopped: str = "",
    more: Sequence[Condition] = (),
    resizes: tuple[Resize, ...] = (),
) -> GpuNode:
    """Return the GPUNode with this status."""
    said = conditions(
        gpus, previous=node.conditions, now=now, unread=unread, hung_up=hung_up, stopped=stopped, more=more
    )
    return dataclasses.replace(node, gpus=tuple(gpus), config=config, conditions=said, resizes=resizes)


def _with_fault(gpu: Gpu, faults: gpu_health.Faults) -> Gpu:
    fault = faults.get(gpu.uuid)
    return gpu if fault is None or not gpu.healthy else _unhealthy(gpu, fault.reason)


def _unhealthy(gpu: Gpu, reason: str) -> Gpu:
    return dataclasses.replace(gpu, healthy=False, health_reason=reason)
