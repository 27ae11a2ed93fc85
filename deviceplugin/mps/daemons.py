"""Daemons: the MPS daemons of a node, one for each GPU that is shared by MPS."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from deviceplugin.mps import pid_file, places, running, steps
from deviceplugin.mps.daemon import MpsDaemon, SetComputeMode


@dataclasses.dataclass(frozen=True, slots=True)
class _Kept:
    daemon: MpsDaemon
    task: asyncio.Task[None]


class Daemons:
    """Daemons by name, which is the GPU's UUID.

    root: the config's `mpsRoot`, as the agent sees it. program: `nvidia-cuda-mps-control`. changed: called when the
    answer of `problem` may have changed.
    """

    def __init__(
        self, *, root: Path, program: Path, exclusive: SetComputeMode, changed: Callable[[], None] = lambda: None
    ) -> None:
        self._root = root
        self._program = program
        self._exclusive = exclusive
        self._told = changed
        self._kept: dict[str, _Kept] = {}

    async def have(self, spec: steps.Spec) -> None:
        """Have this daemon running, with these limits. Raises ControlError or OSError if it does not start.

        Also then it is tried again until `drop`; one that runs from before is taken over with its clients.
        """
        known = self._kept.get(spec.name)
        if known is not None and known.daemon.spec == spec and not known.daemon.problem:
            return
        if known is not None:
            await _end(known.task)
        daemon = self._daemon(spec)
        try:
            await daemon.start()
        finally:
            task = asyncio.create_task(daemon.run(), name=f"mps-{spec.name}")
            self._kept[spec.name] = _Kept(daemon, task)
            self._changed()

    async def drop(self, name: str) -> None:
        """End the daemon of that name, also one that a former agent left."""
        known = self._kept.pop(name, None)
        if known is not None:
            await _end(known.task)
        elif not any(sign.exists() for sign in (self.places(name).started, self.places(name).pid_file)):
            return
        spec = known.daemon.spec if known is not None else steps.Spec(name, (_unknown(name),))
        daemon = known.daemon if known is not None else self._daemon(spec)
        places.Places(self._root, "").ready.unlink(missing_ok=True)
        await daemon.stop()
        self._changed()

    def problem(self, name: str) -> str:
        """Why a GPU cannot be shared by MPS now, as part of a sentence; "" when it can."""
        known = self._kept.get(name)
        return "no MPS daemon is wanted for it" if known is None else known.daemon.problem

    def pids(self) -> frozenset[int]:
        """Those of the daemons that run, also of ones that a former agent left. Blocking."""
        names = {path.name for path in self._root.glob("*/") if path.is_dir()}
        starter, pids = running.starter(self._program), set()
        for name in names:
            with contextlib.suppress(ProcessLookupError):
                process = pid_file.find(self.places(name), starter)
                if process is not None:
                    os.close(process.pidfd)
                    pids.add(process.pid)
        return frozenset(pids)

    def places(self, name: str) -> places.Places:
        """Where the daemon of that name has its files."""
        return places.Places(self._root, name)

    async def leave(self) -> None:
        """Watch no daemon any more, and leave all of them running, for the next agent and for their clients."""
        for known in self._kept.values():
            await _end(known.task)

    async def stop(self) -> None:
        """End all daemons."""
        places.Places(self._root, "").ready.unlink(missing_ok=True)
        for name in list(self._kept):
            await self.drop(name)

    def _daemon(self, spec: steps.Spec) -> MpsDaemon:
        return MpsDaemon(spec, root=self._root, program=self._program, exclusive=self._exclusive, changed=self._changed)

    def _changed(self) -> None:
        ready = places.Places(self._root, "").ready
        if all(not known.daemon.problem for known in self._kept.values()):
            self._root.mkdir(parents=True, exist_ok=True)
            ready.touch()
        else:
            ready.unlink(missing_ok=True)
        self._told()


def _unknown(uuid: str) -> steps.MpsGpu:
    return steps.MpsGpu(uuid, index=0, memory_bytes=0, replicas=1)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
