"""Daemon: one MPS control daemon: started, kept running, stopped.

It is started in the background and found again by its pipe, so that it outlives the agent's process: with the daemon,
all its clients would end. Its death is an event (a pidfd), and not found out by asking again and again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
import signal
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from deviceplugin.host.kernel_process import KernelProcess
from deviceplugin.mps import pid_file, running, steps
from deviceplugin.mps.control import Control, ControlError
from deviceplugin.mps.places import Places
from gpushare.cluster import backoff

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS: Final = 1.0
MAX_PAUSE_SECONDS: Final = 30.0
STEADY_SECONDS: Final = 60.0  # one that ran for so long has not failed at starting
ASK_SECONDS: Final = 60.0  # a daemon that lives but does not answer is found so
ASK_AGAIN_SECONDS: Final = 5.0  # where it was silent
MAX_SILENCES: Final = 3  # in a row
STOP_SECONDS: Final = 10.0
MAX_LOG_BYTES: Final = 1 << 20  # at a time
_SERVER_FAILED: Final = re.compile(rb"Server [0-9]+ exited with status [1-9]")
_SELINUX: Final = Path("/sys/fs/selinux")
_SELINUX_LABEL: Final = b"system_u:object_r:container_file_t:s0\0"

SetComputeMode = Callable[[str, bool], Awaitable[None]]


class MpsDaemon:
    """The daemon of one `Spec`.

    exclusive: sets a GPU's compute mode, may raise any exception with a sentence. changed: called when `problem`
    has become another.
    """

    def __init__(
        self, spec: steps.Spec, *, root: Path, program: Path, exclusive: SetComputeMode, changed: Callable[[], None]
    ) -> None:
        self.spec = spec
        self.places = Places(root, spec.name)
        self.problem = "it is not started yet"
        self._control = Control(program, steps.environment(spec, self.places))
        self._exclusive = exclusive
        self._changed = changed
        self._log_position: int | None = None

    async def run(self) -> None:
        """Keep it running until cancelled, which leaves it running. After `start`, whether or not that worked."""
        failures = 0
        while True:
            began = time.monotonic()
            try:
                if self.problem:
                    await self.start()
                why = await self._until_it_fails()
            except (ControlError, OSError) as error:
                why = str(error)
            self._forward_log()
            failures = 1 if time.monotonic() - began > STEADY_SECONDS else failures + 1
            pause = backoff.pause_seconds(failures, first_seconds=FIRST_PAUSE_SECONDS, most_seconds=MAX_PAUSE_SECONDS)
            self.places.started.unlink(missing_ok=True)
            self._tell(why)
            logger.warning(
                "An MPS daemon does not run", extra={"daemon": self.spec.name, "reason": why, "pause": pause}
            )
            await asyncio.sleep(pause)

    async def start(self) -> None:
        """Start it, unless it runs already, and set its limits. Raises ControlError or OSError."""
        for step in steps.start(self.spec, self.places):
            await self._do(step)
        self._tell("")
        logger.info("An MPS daemon runs", extra={"daemon": self.spec.name})

    async def stop(self) -> None:
        """End it and its clients, and undo what starting it did; nothing happens where that is so."""
        for step in steps.stop(self.spec, self.places):
            await self._do(step)
        self._tell("it is stopped")

    async def _do(self, step: steps.Step) -> None:
        match step:
            case steps.SetComputeMode(exclusive, uuids):
                for gpu in uuids:
                    await self._set_exclusive(gpu, exclusive=exclusive)
            case steps.MakeDirectory(path):
                path.mkdir(parents=True, exist_ok=True)
                path.chmod(steps.DIRECTORY_MODE)
                if path == self.places.pipe and _SELINUX.exists():
                    os.setxattr(path, "security.selinux", _SELINUX_LABEL)
            case steps.RunDaemon():
                if not await self._control.answers():
                    await self._start()
            case steps.Command(lines, stopping):
                if stopping:
                    await self._quit()
                    return
                for line in lines:
                    await self._control.send(line)
            case steps.Touch(path):
                path.touch()
            case steps.Remove(path):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            case steps.FollowLog(_, stop):
                self._forward_log()
                self._log_position = None if stop else self._log_end()

    async def _start(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            pidfd = await self._pidfd()
            if pidfd is None:
                self._forget()  # the daemon would open whatever a client has put there
            else:
                os.close(pidfd)
        await self._control.start()

    async def _set_exclusive(self, gpu: str, *, exclusive: bool) -> None:
        try:
            await self._exclusive(gpu, exclusive)
        except Exception as error:
            raise ControlError(f"the compute mode of {gpu} cannot be set: {error}") from error

    async def _quit(self) -> None:
        """Ask it to end; if it does not, end it."""
        try:
            pidfd = await self._pidfd()
        except ProcessLookupError:
            pidfd = None  # a client may have written another number: the pipe says whether it runs
        try:
            with contextlib.suppress(ControlError):
                await self._control.send("quit")
            if pidfd is not None and not await _ends(pidfd, STOP_SECONDS):
                logger.warning("An MPS daemon does not end by itself", extra={"daemon": self.spec.name})
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                await _ends(pidfd, STOP_SECONDS)
            self._forget()
        finally:
            if pidfd is not None:
                os.close(pidfd)

    async def _until_it_fails(self) -> str:
        """Why it does not run any more."""
        try:
            pidfd = await self._pidfd()
        except ProcessLookupError:
            return "it has ended"
        silences = 0
        try:
            while True:
                pause_seconds = ASK_AGAIN_SECONDS if silences else ASK_SECONDS
                if pidfd is None:
                    await asyncio.sleep(pause_seconds)
                elif await _ends(pidfd, pause_seconds):
                    return "it has ended"
                self._forward_log()
                # That it does not answer once may be for want of a processor, and its end is that of all its clients.
                silences = 0 if await self._control.answers() else silences + 1
                if silences == MAX_SILENCES:
                    # A hung one would keep its pipe from the next.
                    await self._quit()
                    return "it did not answer"
        finally:
            if pidfd is not None:
                os.close(pidfd)

    async def _pidfd(self) -> int | None:
        """The process behind the pipe; None where it is unknown. Raises ProcessLookupError if it has ended."""
        try:
            process = await asyncio.to_thread(self.process)
        except ProcessLookupError:
            self._forget()
            raise
        return process.pidfd if process is not None else None

    def process(self) -> KernelProcess | None:
        """The daemon's process, as `pid_file.find`. Blocking."""
        return pid_file.find(self.places, running.starter(self._control.program))

    def _forget(self) -> None:
        """Remove the pid file, or whatever a client has put in its place."""
        try:
            self.places.pid_file.unlink(missing_ok=True)
        except IsADirectoryError:
            self.places.pid_file.rename(self.places.pipe / f".{uuid.uuid4().hex}")

    def _log_end(self) -> int:
        try:
            return (self.places.log / "control.log").stat().st_size
        except FileNotFoundError:
            return 0

    def _forward_log(self) -> None:
        if self._log_position is None:
            return
        try:
            with (self.places.log / "control.log").open("rb") as log:
                log.seek(self._log_position)
                lines = log.read(MAX_LOG_BYTES).splitlines()
                self._log_position = log.tell()
        except FileNotFoundError:
            return
        for line in lines:
            text = line.decode(errors="replace")
            logger.debug("MPS", extra={"daemon": self.spec.name, "line": text})
        # The daemon answers all the same, and starts a server for the next client, however often that fails.
        failed = [line for line in lines if _SERVER_FAILED.search(line)]
        if failed:
            last = failed[-1].decode(errors="replace")
            extra = {"daemon": self.spec.name, "times": len(failed), "line": last, "log": str(self.places.log)}
            logger.warning("MPS servers failed, and their clients with them", extra=extra)

    def _tell(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            self._changed()


async def _ends(pidfd: int, timeout_seconds: float) -> bool:
    """Whether the process ends within that time."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        async with asyncio.timeout(timeout_seconds):
            await ended.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(pidfd)
    # The parent of a daemon is the first process of its container, and that may be this one.
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)  # noqa: ASYNC222 - it does not wait
    return True
