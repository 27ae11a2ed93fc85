"""The MPS daemons of a node, one for each GPU in mode mps or with shares that have that isolation."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from deviceplugin.mps import pipe, steps, supervisor
from deviceplugin.mps.daemon import MpsDaemon, SetComputeMode
from deviceplugin.mps.steps import DaemonFiles
from deviceplugin.mps.supervisor import Control, ControlError

IsUsed = Callable[[str], Awaitable[bool]]


@dataclasses.dataclass(eq=False)
class Daemons:
    """The daemons by name, which is the GPU's UUID.

    root: the configuration's `mpsRoot`, as the agent sees it. program: `nvidia-cuda-mps-control`, or a keeper's socket.
    set_exclusive: sets a GPU's compute mode. changed: called when the result of `problem` may have changed. warn: gets
    a sentence whenever a daemon does not run any more.
    """

    _: dataclasses.KW_ONLY
    root: Path
    program: Path
    set_exclusive: SetComputeMode
    changed: Callable[[], None] = lambda: None
    warn: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        self._daemons: dict[str, MpsDaemon] = {}
        self._locks = collections.defaultdict[str, asyncio.Lock](asyncio.Lock)  # by name, for a start or a stop
        self.partitioning = collections.defaultdict[str, asyncio.Lock](asyncio.Lock)  # by name

    async def start(self, spec: steps.Spec) -> None:
        """Start and supervise this daemon with these limits. Raises ControlError or OSError if it does not start.

        Even then it is retried until `stop`. A daemon that a former agent started is taken over with its clients.
        """
        async with self._locks[spec.name]:
            known = self._daemons.get(spec.name)
            if known is not None and known.spec == spec and not known.problem:
                return
            if known is not None:
                await known.detach()
            daemon = self._daemon(spec)
            daemon.silences = known.silences if known is not None else 0
            try:
                await daemon.start()
            except (ControlError, OSError) as error:
                daemon.problem = str(error)
                raise
            finally:
                daemon.supervise()
                self._daemons[spec.name] = daemon
                self._changed()

    async def stop(self, name: str, *, for_shares: bool = False, is_used: IsUsed | None = None) -> None:
        """Stop the daemon of this name, also if a former agent started it. Raises ControlError or OSError.

        is_used: asked last of all, while no other start or stop goes on; a daemon in use is left as it is, and one that
        is not leaves no pipe directory behind.
        """
        async with self._locks[name]:
            await self._stop(name, for_shares=for_shares, is_used=is_used)

    async def _stop(self, name: str, *, for_shares: bool, is_used: IsUsed | None) -> None:
        files = self.files(name)
        if name not in self._daemons and not any(sign.exists() for sign in (files.started, files.pid_file)):
            return
        if is_used is not None and await is_used(name):
            return
        daemon = self._daemons.pop(name, None)
        if daemon is None:
            unknown = steps.MpsGpu(name, index=0, memory_bytes=0, replicas=1)
            daemon = self._daemon(steps.Spec(name, (unknown,), for_shares=for_shares))
        await daemon.detach()
        self.files("").ready.unlink(missing_ok=True)
        await daemon.stop()
        if is_used is not None:
            await asyncio.to_thread(pipe.remove_former, files)
        self._changed()

    def problem(self, name: str) -> str:
        """Return why the GPU cannot be shared by MPS now, as part of a sentence, or ""."""
        return self._daemons[name].problem if name in self._daemons else "no MPS daemon runs for it"

    def knows(self, name: str) -> bool:
        """Whether this daemon was started and not stopped, whether or not it runs now."""
        return name in self._daemons

    async def may_run(self, name: str) -> bool:
        """Whether a daemon of this name runs, also a former agent's, as far as can be known."""
        return await asyncio.to_thread(lambda: pipe.may_run(self.files(name), supervisor.starter(self.program)))

    def partitions(self, name: str) -> int | None:
        """Return into how many SM partitions a daemon, also a former agent's, has cut its GPU; None without daemon."""
        if name in self._daemons:
            return self._daemons[name].spec.partitions
        try:
            return int(self.files(name).started.read_text() or 0)
        except (FileNotFoundError, ValueError):
            return None

    def server_failures(self, name: str) -> int:
        """Return how many servers of this daemon have failed so far."""
        return self._daemons[name].server_failures() if name in self._daemons else 0

    async def send(self, name: str, command: str) -> str:
        """Return a daemon's answer to a command. Raises ControlError."""
        return await Control(self.program, steps.environment(steps.for_shares(name), self.files(name))).send(command)

    def pids(self) -> frozenset[int]:
        """Return the PIDs of all running daemons, also of a former agent's. Blocking."""
        starter, pids = supervisor.starter(self.program), set()
        for path in self.root.glob("*/"):
            with contextlib.suppress(ProcessLookupError):
                process = pipe.find_process(self.files(path.name), starter) if path.is_dir() else None
                if process is not None:
                    os.close(process.pidfd)
                    pids.add(process.pid)
        return frozenset(pids)

    def files(self, name: str) -> DaemonFiles:
        return DaemonFiles(self.root, name)

    async def detach(self) -> None:
        """Stop supervising, and leave the daemons running for their clients and the next agent."""
        for daemon in self._daemons.values():
            await daemon.detach()

    def _daemon(self, spec: steps.Spec) -> MpsDaemon:
        return MpsDaemon(
            spec,
            root=self.root,
            program=self.program,
            set_exclusive=self.set_exclusive,
            changed=self._changed,
            warn=self.warn,
            partitioning=self.partitioning[spec.name],
        )

    def _changed(self) -> None:
        ready = self.files("").ready
        if all(not daemon.problem for daemon in self._daemons.values()):
            self.root.mkdir(parents=True, exist_ok=True)
            ready.touch()
        else:
            ready.unlink(missing_ok=True)
        self.changed()
