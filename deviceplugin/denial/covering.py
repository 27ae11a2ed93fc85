"""Who has the program attached to the pods with shares, before their containers are made, and says so."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from deviceplugin.denial import denial, denied_pods
from gpushare import pod
from gpushare.gpunode import Condition
from gpushare.pod import PodJson

logger = logging.getLogger(__name__)

SECONDS: Final = 2.0  # between two looks at pods of which the kubelet did not say that they start


class Covering:
    """What the kernel is asked to do, as `made`, for the pods of the node; or why it cannot, as a sentence.

    pods: of the node; conditions: for the GPUNode; changed is called when they have.
    """

    def __init__(
        self,
        made: denial.DenialProgram | None,
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
            self._say(problem, ())

    @property
    def is_on(self) -> bool:
        """Whether the kernel denies the device files to pods."""
        return self._denial is not None

    @property
    def map_descriptor(self) -> int | None:
        """What the arbiter is to be given."""
        return self._denial.map_descriptor if self._denial is not None else None

    def cover(self, pod_uid: str = "") -> None:
        """Have it attached wherever it is to be; raises DenialError, also if that cannot be told of this pod."""
        if self._denial is None:
            return
        known = tuple(self._pods())
        if pod_uid and all(pod.uid(manifest) != pod_uid for manifest in known):
            raise denial.DenialError(f"the pod {pod_uid} is not known to the agent yet: it will be soon")
        chosen = denied_pods.choose(known)
        new = chosen.uids - self._covered
        self._covered = (self._covered & chosen.uids) | self._denial.attach(new)
        self._say("", chosen.left_out)
        if pod_uid in chosen.uids - self._covered:
            raise denial.DenialError(
                f"the cgroup of the pod {pod_uid} was not found, so nobody could be denied its GPU"
            )

    async def run(self) -> None:
        """Attach it to pods that run already, and to those of which nobody is told, until cancelled."""
        while True:
            try:
                self.cover()
            except denial.DenialError as error:
                self._say(str(error), ())
            await asyncio.sleep(SECONDS)

    def _say(self, problem: str, left_out: tuple[str, ...]) -> None:
        conditions = (denied_pods.condition(problem, left_out),)
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
) -> Iterator[Covering]:
    """A program that is loaded, if that is wanted and possible; why it is not is told."""
    if not wanted:
        yield Covering(None, "")
        return
    try:
        made = denial.opened(bpf_root, cgroup_root, proc=proc)
    except denial.DenialError as error:
        yield Covering(None, str(error), pods=pods, changed=changed)
        return
    try:
        yield Covering(made, "", pods=pods, changed=changed)
    finally:
        made.close()
