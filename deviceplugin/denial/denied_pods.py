"""For which pods the devices are denied to who is not registered. Pure.

The cgroup of a pod is there before its containers are, so it is the pod's. Where another container of it may have whole
GPUs, whose programs register nowhere, that would take them away: such a pod is left as it is, and told of.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

from gpushare import contract, pod
from gpushare.gpunode import Condition
from gpushare.pod import PodJson

DENIED: Final = "a process in a container with a share gets no GPU unless it is registered with the arbiter"
_NVIDIA: Final = "nvidia.com/"
_MAX_NAMED: Final = 10


@dataclasses.dataclass(frozen=True, slots=True)
class Chosen:
    """uids: of the pods that it is for; left_out: the names of those with shares that it cannot be for."""

    uids: frozenset[str]
    left_out: tuple[str, ...] = ()


def choose(pods: Iterable[PodJson]) -> Chosen:
    """Of the pods of a node."""
    uids, left_out = set(), []
    for manifest in pods:
        if contract.ALLOCATION not in pod.annotations_of(manifest) or pod.is_terminal(manifest):
            continue
        if _has_more(manifest):
            left_out.append("/".join(pod.namespaced_name(manifest)))
        else:
            uids.add(pod.uid(manifest))
    return Chosen(frozenset(uids), tuple(sorted(left_out)))


def condition(problem: str, left_out: tuple[str, ...]) -> Condition:
    """What the GPUNode is to say. problem: why it cannot be done, as a sentence; empty if it is."""
    kind = contract.CONDITION_UNREGISTERED_DENIED
    if problem:
        return Condition(kind, "False", "NotPossible", f"{problem}; processes without limits are told of, as ever")
    if not left_out:
        return Condition(kind, "True", "Denied", DENIED)
    more = f" and {len(left_out) - _MAX_NAMED} more" if len(left_out) > _MAX_NAMED else ""
    named = f"{', '.join(left_out[:_MAX_NAMED])}{more}"
    return Condition(kind, "True", "Denied", f"{DENIED}, but in {named}: another container there may have whole GPUs")


def _has_more(manifest: PodJson) -> bool:
    """Whether a container has a GPU, or something that may be one, in another way than by a share."""
    for container in (*pod.containers(manifest), *pod.init_containers(manifest)):
        has_claims = bool((container.get("resources") or {}).get("claims"))
        if has_claims or any(name.startswith(_NVIDIA) for name in pod.resources(container)):
            return True
    return False
