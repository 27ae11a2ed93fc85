"""The MPS daemon of one GPU: started, supervised, and stopped.

A daemon runs in the background and the next agent finds it by its pipe, because the end of the daemon would end all its
clients. Its end is noticed at once through a pidfd, not by polling.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from deviceplugin.mps import pipe, sm_partitions, steps, supervisor
from deviceplugin.mps.steps import DaemonFiles
from deviceplugin.mps.supervisor import Control, ControlError
from gpushare.cluster import retrying

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS: Final = 1.0
MAX_PAUSE_SECONDS: Final = 30.0
STEADY_SECONDS: Final = 60.0  # a daemon that ran for so long did not fail at its start
PROBE_SECONDS: Final = 60.0  # finds daemons that run but hang
PROBE_AGAIN_SECONDS: Final = 5.0  # after a probe without answer
MAX_SILENCES: Final = 3  # in a row
LIMITS_SECONDS: Final = 10.0  # to set the limits again
STOP_SECONDS: Final = 10.0
MAX_LOG_BYTES: Final = 1 << 20  # per read
_SERVER_FAILED: Final = re.compile(rb"Server [0-9]+ exited with status [1-9]")

SetComputeMode = Callable[[str, bool], Awaitable[None]]  # may raise any exception with a sentence


@dataclasses.dataclass(eq=False)
class MpsDaemon:
    """The daemon of one `Spec`. problem: why it does not run, or "". changed: called when that has changed.

    warn: gets a sentence whenever it does not run any more.
    """

    spec: steps.Spec
    _: dataclasses.KW_ONLY
    root: Path
    program: Path
    set_exclusive: SetComputeMode
    changed: Callable[[], None]
    warn: Callable[[str], None]
    partitioning: asyncio.Lock  # while the GPU is cut, or a share gets a partition

    def __post_init__(self) -> None:
        self.files = DaemonFiles(self.root, self.spec.name)
        self.problem = "it is not started yet"
        self._control = Control(self.program, steps.environment(self.spec, self.files))
        self._log_position: int | None = None
        self._server_failures = 0
        self.silences = 0  # of a running daemon that this one was to take over, in a row
        self._supervising: asyncio.Task[None] | None = None

    def server_failures(self) -> int:
        """Return how many servers have failed since the start, by the daemon's log up to now."""
        self._forward_log()
        return self._server_failures

    def supervise(self) -> None:
        """Restart the daemon whenever it fails, until `detach`. Call this after `start`, even if that failed."""
        self._supervising = asyncio.create_task(self._restart(), name=f"mps-{self.spec.name}")

    async def detach(self) -> None:
        if self._supervising is not None:
            self._supervising.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervising

    async def _restart(self) -> None:
        failures = 0
        while True:
            began = time.monotonic()
            try:
                if self.problem:
                    await self.start()
                why = await self._wait_for_failure()
            except (ControlError, OSError) as error:
                why = str(error)
            self._forward_log()
            failures = 1 if time.monotonic() - began > STEADY_SECONDS else failures + 1
            pause = retrying.pause_seconds(failures, first_seconds=FIRST_PAUSE_SECONDS, most_seconds=MAX_PAUSE_SECONDS)
            self.files.started.unlink(missing_ok=True)
            self._set_problem(why)
            extra = {"daemon": self.spec.name, "reason": why, "pause": pause}
            logger.warning("An MPS daemon does not run", extra=extra)
            # Without the pause, the sentence is the same each time, and its Event counts.
            self.warn(f"the MPS daemon of {self.spec.name} does not run and is restarted: {why}")
            await asyncio.sleep(pause)

    async def start(self) -> None:
        """Start the daemon, unless it runs already, and set its limits. Raises ControlError or OSError."""
        for step in steps.start(self.spec, self.files):
            await self._do(step)
        await asyncio.to_thread(pipe.publish, self.files)
        self._set_problem("")
        logger.info("An MPS daemon runs", extra={"daemon": self.spec.name})

    async def stop(self) -> None:
        """Stop the daemon and its clients, and undo its setup; no-op if stopped. Raises ControlError or OSError."""
        for step in steps.stop(self.spec, self.files):
            await self._do(step)
        self._set_problem("it is stopped")

    async def _do(self, step: steps.Step) -> None:
        match step:
            case steps.SetComputeMode(exclusive, uuids):
                for gpu in uuids:
                    try:
                        await self.set_exclusive(gpu, exclusive)
                    except Exception as error:
                        raise ControlError(f"the compute mode of {gpu} cannot be set: {error}") from error
            case steps.MakeDirectory(path, mode, is_mounted):
                pipe.make_directory(path, mode, is_mounted=is_mounted)
            case steps.RunDaemon(_, multi_user, static):
                if not await self._control.answers():
                    await self._start(multi_user=multi_user, static=static)
                self.silences = 0
            case steps.CutPartitions(uuid, count):
                async with self.partitioning:
                    there = await sm_partitions.cut(self._control.send, uuid, count)
                    await asyncio.to_thread(sm_partitions.renew, self.files.shares, there)
            case steps.Command(lines, stopping):
                if stopping:
                    await self._quit()
                    return
                for line in lines:
                    await self._control.send(line)
            case steps.Touch(path, text):
                path.write_text(text)
            case steps.Remove(path):
                pipe.remove(path)
            case steps.FollowLog(_, stop):
                self._forward_log()
                self._log_position = None if stop else 0
                with contextlib.suppress(FileNotFoundError):
                    self._log_position = None if stop else self.files.control_log.stat().st_size

    async def _start(self, *, multi_user: bool, static: bool) -> None:
        with contextlib.suppress(ProcessLookupError):
            pidfd = await self._pidfd()
            if pidfd is not None:
                try:
                    await self._end_hanging(pidfd)
                finally:
                    os.close(pidfd)
            elif await asyncio.to_thread(supervisor.starter, self._control.program) is None:
                raise ControlError(f"the keeper of MPS daemons does not answer at {self._control.program}")
        await asyncio.to_thread(pipe.retire, self.files)
        await asyncio.to_thread(pipe.make_pipe, self.files)
        await self._control.start(multi_user=multi_user, static=static)

    async def _end_hanging(self, pidfd: int) -> None:
        """End a daemon that has not answered MAX_SILENCES times, and its clients. Raises ControlError before that."""
        self.silences += 1
        if self.silences < MAX_SILENCES:
            raise ControlError(
                f"{self.spec.name} has an MPS daemon that does not answer: the agent ends it and its clients "
                f"after {MAX_SILENCES} attempts"
            )
        await self._quit(pidfd)

    async def _quit(self, hanging: int | None = None) -> None:
        """Stop the daemon, and retire its pipe directory. hanging: the pidfd of one that has not answered for long."""
        pidfd = None  # if unknown, as a client may have changed the PID, the pipe shows whether it runs
        with contextlib.suppress(ProcessLookupError):
            pidfd = hanging if hanging is not None else await self._pidfd()
        try:
            if hanging is None:
                with contextlib.suppress(ControlError):
                    await self._control.send("quit")
            if pidfd is not None and not (hanging is None and await pipe.ended(pidfd, STOP_SECONDS)):
                logger.warning("An MPS daemon did not quit and is killed", extra={"daemon": self.spec.name})
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                await pipe.ended(pidfd, STOP_SECONDS)
            await asyncio.to_thread(pipe.retire, self.files)
        finally:
            if pidfd is not None and hanging is None:
                os.close(pidfd)

    async def _wait_for_failure(self) -> str:
        """Wait until the daemon ends or hangs; return why it does not run any more."""
        try:
            pidfd = await self._pidfd()
        except ProcessLookupError:
            return "it has ended"
        silences = 0
        try:
            while True:
                pause_seconds = PROBE_AGAIN_SECONDS if silences else PROBE_SECONDS
                if pidfd is None:
                    await asyncio.sleep(pause_seconds)
                elif await pipe.ended(pidfd, pause_seconds):
                    return "it has ended"
                self._forward_log()
                # A single missed answer may only mean a busy CPU, and stopping the daemon ends all its clients.
                silences = 0 if await self._keeps_limits() else silences + 1
                if silences == MAX_SILENCES:
                    # A hung daemon would block the pipe of the next one.
                    await self._quit(pidfd)
                    return "it did not answer"
        finally:
            if pidfd is not None:
                os.close(pidfd)

    async def _keeps_limits(self) -> bool:
        """Set the limits again, which root in a client's container can change. Return whether the daemon answers."""
        try:
            answer = await self._control.send("get_server_list")
        except ControlError:
            return False
        # Clients can answer for the servers, so neither their number nor their errors show whether the daemon hangs.
        with contextlib.suppress(ValueError, TimeoutError):
            async with asyncio.timeout(LIMITS_SECONDS):
                for line in steps.limit_commands(self.spec, steps.pids(answer)):
                    with contextlib.suppress(ControlError):
                        await self._control.send(line)
        return True

    async def _pidfd(self) -> int | None:
        """Return the pidfd of the daemon, or None if it is unknown. Raises ProcessLookupError if it has ended."""
        try:
            process = await asyncio.to_thread(
                lambda: pipe.find_process(self.files, supervisor.starter(self._control.program))
            )
        except ProcessLookupError:  # or a client has changed the PID
            await asyncio.to_thread(pipe.remove, self.files.pid_file)
            raise
        return process.pidfd if process is not None else None

    def _forward_log(self) -> None:
        if self._log_position is None:
            return
        try:
            with self.files.control_log.open("rb") as log:
                log.seek(self._log_position)
                lines = log.read(MAX_LOG_BYTES).splitlines()
                self._log_position = log.tell()
        except FileNotFoundError:
            return
        for line in lines:
            text = line.decode(errors="replace")
            logger.debug("MPS", extra={"daemon": self.spec.name, "line": text})
        # The daemon still answers, and starts a server for each new client, however often that fails.
        failed = [line for line in lines if _SERVER_FAILED.search(line)]
        self._server_failures += len(failed)
        if failed:
            last = failed[-1].decode(errors="replace")
            extra = {"daemon": self.spec.name, "times": len(failed), "line": last, "log": str(self.files.log)}
            logger.warning("MPS servers failed, together with their clients", extra=extra)

    def _set_problem(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            self.changed()
