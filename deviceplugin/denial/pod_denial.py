"""Denies the devices to unregistered processes of pods with shares, before their containers are created.

The cgroup of a pod exists before its containers do, so the program is attached there. If another container of the pod
may have whole GPUs, whose programs do not register, that would take these away. Such a pod is left out, and named in
the condition.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from deviceplugin.denial import denial_program
from gpushare import contract, pod
from gpushare.gpunode import Condition
from gpushare.pod import PodJson

logger = logging.getLogger(__name__)

SECONDS: Final = 2.0  # between two rounds, for pods whose start the kubelet did not announce
DENIED: Final = "a process in a container with a share gets no GPU unless it is registered with the arbiter"
_NVIDIA: Final = "nvidia.com/"
_MAX_NAMED: Final = 10


@dataclasses.dataclass(frozen=True, slots=True)
class Chosen:
    """The UIDs of the pods to cover, and the names of pods with shares that are left out."""

    uids: frozenset[str]
    left_out: tuple[str, ...] = ()


def choose(pods: Iterable[PodJson]) -> Chosen:
    """Choose the pods to cover among the pods of this node."""
    uids, left_out = set(), []
    for manifest in pods:
        if contract.ALLOCATION not in pod.annotations_of(manifest) or pod.is_terminal(manifest):
            continue
        if _may_have_whole_gpus(manifest):
            left_out.append("/".join(pod.namespaced_name(manifest)))
        else:
            uids.add(pod.uid(manifest))
    return Chosen(frozenset(uids), tuple(sorted(left_out)))


def condition(problem: str, left_out: tuple[str, ...]) -> Condition:
    """Return the GPUNode's condition. problem: why nothing is denied, as a sentence, or empty."""
    kind = contract.CONDITION_UNREGISTERED_DENIED
    if problem:
        return Condition(kind, "False", "NotPossible", f"{problem}; processes without limits are still reported")
    if not left_out:
        return Condition(kind, "True", "Denied", DENIED)
    more = f" and {len(left_out) - _MAX_NAMED} more" if len(left_out) > _MAX_NAMED else ""
    named = f"{', '.join(left_out[:_MAX_NAMED])}{more}"
    return Condition(
        kind, "True", "Denied", f"{DENIED}, except in {named}: another container there may have whole GPUs"
    )


def _may_have_whole_gpus(manifest: PodJson) -> bool:
    """Whether a container gets a GPU, or something that may be one, in another way than by a share."""
    for container in (*pod.containers(manifest), *pod.init_containers(manifest)):
        has_claims = bool((container.get("resources") or {}).get("claims"))
        if has_claims or any(name.startswith(_NVIDIA) for name in pod.resources(container)):
            return True
    return False


class PodDenial:
    """Attaches the program to the pods of the node, or says in a condition why it cannot.

    made: the loaded program, or None. problem: why it could not be loaded, or empty. pods: returns the node's pods.
    changed: called when `conditions` has changed.
    """

    def __init__(
        self,
        made: denial_program.DenialProgram | None,
        problem: str,
        *,
        pods: Callable[[], Iterable[PodJson]] = tuple,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._denial = made
        self._covered: frozenset[str] = frozenset()
        self._pods, self._changed = pods, changed
        self.conditions: tuple[Condition, ...] = ()
        if problem:
            self._set_condition(problem, ())

    @property
    def is_on(self) -> bool:
        """Whether the kernel denies the devices to pods."""
        return self._denial is not None

    @property
    def map_descriptor(self) -> int | None:
        """The descriptor of the map for the arbiter, or None."""
        return self._denial.map_descriptor if self._denial is not None else None

    def cover(self, pod_uid: str = "") -> None:
        """Attach the program to all pods that need it. Raises DenialError, also if this pod could not be covered."""
        if self._denial is None:
            return
        known = tuple(self._pods())
        if pod_uid and all(pod.uid(manifest) != pod_uid for manifest in known):
            raise denial_program.DenialError(f"the pod {pod_uid} is not known to the agent yet")
        chosen = choose(known)
        new = chosen.uids - self._covered
        self._covered = (self._covered & chosen.uids) | self._denial.attach(new)
        self._set_condition("", chosen.left_out)
        if pod_uid in chosen.uids - self._covered:
            raise denial_program.DenialError(
                f"the cgroup of the pod {pod_uid} was not found, so no process could be denied its GPU"
            )

    async def run(self) -> None:
        """Attach the program in a loop, for pods that were running or that started without Allocate."""
        while True:
            try:
                self.cover()
            except denial_program.DenialError as error:
                self._set_condition(str(error), ())
            await asyncio.sleep(SECONDS)

    def _set_condition(self, problem: str, left_out: tuple[str, ...]) -> None:
        conditions = (condition(problem, left_out),)
        if conditions != self.conditions:
            self.conditions = conditions
            if problem:
                logger.error("Unregistered processes are not denied the GPU", extra={"err": problem})
            self._changed()


@contextlib.contextmanager
def opened(
    bpf_root: Path,
    cgroup_root: Path,
    *,
    proc: Path,
    wanted: bool,
    pods: Callable[[], Iterable[PodJson]],
    changed: Callable[[], None],
) -> Iterator[PodDenial]:
    """Load the program if it is wanted, and yield its PodDenial. A failure goes into the condition."""
    if not wanted:
        yield PodDenial(None, "")
        return
    try:
        made = denial_program.load(bpf_root, cgroup_root, proc=proc)
    except denial_program.DenialError as error:
        yield PodDenial(None, str(error), pods=pods, changed=changed)
        return
    try:
        yield PodDenial(made, "", pods=pods, changed=changed)
    finally:
        made.close()
