"""The MPS daemons of a node, one for each GPU in mode mps."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from deviceplugin.mps import control, daemon_files, steps
from deviceplugin.mps.daemon import MpsDaemon, SetComputeMode


@dataclasses.dataclass(frozen=True, slots=True)
class _Supervised:
    daemon: MpsDaemon
    task: asyncio.Task[None]


class Daemons:
    """The daemons by name, which is the GPU's UUID.

    root: the configuration's `mpsRoot`, as the agent sees it. program: `nvidia-cuda-mps-control`, or a keeper's socket.
    set_exclusive: sets a GPU's compute mode. changed: called when the result of `problem` may have changed.
    """

    def __init__(
        self, *, root: Path, program: Path, set_exclusive: SetComputeMode, changed: Callable[[], None] = lambda: None
    ) -> None:
        self._root = root
        self._program = program
        self._set_exclusive = set_exclusive
        self._notify = changed
        self._supervised: dict[str, _Supervised] = {}

    async def start(self, spec: steps.Spec) -> None:
        """Start and supervise this daemon with these limits. Raises ControlError or OSError if it does not start.

        Even then it is retried until `stop`. A daemon that a former agent started is taken over with its clients.
        """
        known = self._supervised.get(spec.name)
        if known is not None and known.daemon.spec == spec and not known.daemon.problem:
            return
        if known is not None:
            await _cancel(known.task)
        daemon = self._daemon(spec)
        try:
            await daemon.start()
        finally:
            task = asyncio.create_task(daemon.run(), name=f"mps-{spec.name}")
            self._supervised[spec.name] = _Supervised(daemon, task)
            self._changed()

    async def stop(self, name: str) -> None:
        """Stop the daemon of this name, also if a former agent started it. Raises ControlError or OSError."""
        known = self._supervised.pop(name, None)
        if known is not None:
            await _cancel(known.task)
        elif not any(sign.exists() for sign in (self.files(name).started, self.files(name).pid_file)):
            return
        spec = known.daemon.spec if known is not None else steps.Spec(name, (_unknown(name),))
        daemon = known.daemon if known is not None else self._daemon(spec)
        self.files("").ready.unlink(missing_ok=True)
        await daemon.stop()
        self._changed()

    def problem(self, name: str) -> str:
        """Return why the GPU cannot be shared by MPS now, as part of a sentence, or ""."""
        known = self._supervised.get(name)
        return "no MPS daemon is configured for it" if known is None else known.daemon.problem

    def pids(self) -> frozenset[int]:
        """Return the PIDs of all running daemons, also of a former agent's. Blocking."""
        names = {path.name for path in self._root.glob("*/") if path.is_dir()}
        starter, pids = control.starter(self._program), set()
        for name in names:
            with contextlib.suppress(ProcessLookupError):
                process = daemon_files.find_process(self.files(name), starter)
                if process is not None:
                    os.close(process.pidfd)
                    pids.add(process.pid)
        return frozenset(pids)

    def files(self, name: str) -> daemon_files.DaemonFiles:
        """Return the paths of the daemon of this name."""
        return daemon_files.DaemonFiles(self._root, name)

    async def detach(self) -> None:
        """Stop supervising, and leave the daemons running for their clients and the next agent."""
        for known in self._supervised.values():
            await _cancel(known.task)

    async def stop_all(self) -> None:
        """Stop all daemons."""
        self.files("").ready.unlink(missing_ok=True)
        for name in list(self._supervised):
            await self.stop(name)

    def _daemon(self, spec: steps.Spec) -> MpsDaemon:
        return MpsDaemon(
            spec, root=self._root, program=self._program, set_exclusive=self._set_exclusive, changed=self._changed
        )

    def _changed(self) -> None:
        ready = self.files("").ready
        if all(not known.daemon.problem for known in self._supervised.values()):
            self._root.mkdir(parents=True, exist_ok=True)
            ready.touch()
        else:
            ready.unlink(missing_ok=True)
        self._notify()


def _unknown(uuid: str) -> steps.MpsGpu:
    return steps.MpsGpu(uuid, index=0, memory_bytes=0, replicas=1)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
