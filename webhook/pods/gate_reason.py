"""Why a pod stays gated regardless of free capacity: the rest of its group, or another scheduling gate. Pure.

A share is guaranteed from the moment it is given, so a pod that cannot run yet would waste it. Such a pod is gated, and
gets its turn when it can run.
"""

from __future__ import annotations

from gpushare import contract, errors, pod
from gpushare.pod import PodJson
from gpushare.refusal import Cause, Refusal
from gpushare.request import Request


def reason(manifest: PodJson, request: Request) -> Refusal | None:
    """Return why the pod has to wait regardless of free capacity; None if it may be placed now."""
    foreign = foreign_gates(manifest)
    if foreign:
        return Refusal(for_gates(foreign), cause=Cause.GATE)
    if request.group_size > 1:
        # The placer counts the members. Here they arrive one by one, at different replicas.
        return Refusal(
            f"waits for its group {errors.quoted(request.group)}: its {request.group_size} pods are placed together",
            cause=Cause.GROUP,
        )
    return None


def foreign_gates(manifest: PodJson) -> tuple[str, ...]:
    """Return the scheduling gates of other controllers."""
    return tuple(gate for gate in pod.gates(manifest) if gate != contract.SCHEDULING_GATE)


def for_gates(foreign: tuple[str, ...]) -> str:
    """Return the reason of a pod with scheduling gates of other controllers."""
    names = ", ".join(errors.quoted(name) for name in foreign[:3])
    return f"waits for another controller to remove the scheduling gate {names}: it gets a GPU after that"
