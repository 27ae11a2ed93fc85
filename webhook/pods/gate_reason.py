"""Why a pod stays gated although there may be room: the rest of its group, or another scheduling gate. Pure.

A share is guaranteed from the moment it is given, so a pod that cannot run yet would keep others from what it does not
use. Such a pod is gated, and gets its turn when it could run.
"""

from __future__ import annotations

from gpushare import contract, errors, pod
from gpushare.pod import PodJson
from gpushare.refusal import Cause, Refusal
from gpushare.request import Request


def reason(manifest: PodJson, request: Request) -> Refusal | None:
    """Why the pod is gated, whatever is free; None when it may be placed now."""
    foreign = foreign_gates(manifest)
    if foreign:
        return Refusal(for_gates(foreign), cause=Cause.GATE)
    if request.group_size > 1:
        # How many there are is for the placer to say: here the members come one by one, to whichever replica.
        return Refusal(
            f"waits for its group {errors.quoted(request.group)}: its {request.group_size} pods are placed together",
            cause=Cause.GROUP,
        )
    return None


def foreign_gates(manifest: PodJson) -> tuple[str, ...]:
    """Scheduling gates that are not ours."""
    return tuple(gate for gate in pod.gates(manifest) if gate != contract.SCHEDULING_GATE)


def for_gates(foreign: tuple[str, ...]) -> str:
    """The sentence of a pod that somebody else holds back."""
    names = ", ".join(errors.quoted(name) for name in foreign[:3])
    return f"waits for the scheduling gate {names}, which is somebody else's: it gets a GPU once that is removed"
