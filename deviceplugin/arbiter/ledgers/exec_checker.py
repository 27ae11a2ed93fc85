"""Checks whether processes have become another program (exec), outside of the event loop that grants leases.

The list of a process's mappings can be very long, and the kernel writes it only while the process does not change its
memory: a process that forks, or frees a lot, delays the reader. So each check runs in a thread that the loop never
waits for. Each share has one check at a time, and at most a twentieth of a CPU. So no share can delay another one's
checks or cost the node more than that, whatever its processes have mapped and however often they ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from deviceplugin.arbiter.ledgers.share_ledger import ShareLedger
from deviceplugin.host import kernel_process
from deviceplugin.host.kernel_process import KernelProcess, Mapping

logger = logging.getLogger(__name__)

REST: Final = 19  # pause of a share's checks after each one, as a multiple of its CPU time
FAILED_SECONDS: Final = 1.0  # pause after a check that failed


class ExecChecker:
    """The queue of checks by share. `gone` is called with a ledger and its member that no longer has the ledger
    mapped.
    """

    def __init__(self, gone: Callable[[ShareLedger, KernelProcess], None], *, proc: Path = kernel_process.PROC) -> None:
        self._gone = gone
        self._proc = proc
        self._due: dict[str, dict[KernelProcess, tuple[ShareLedger, asyncio.Future[None]]]] = {}
        self._working: dict[str, asyncio.Task[None]] = {}

    def check(self, share: ShareLedger, member: KernelProcess) -> asyncio.Future[None]:
        """Queue a check of this member. The future is done after the check and its call of `gone`. Queued checks are
        shared.
        """
        key, loop = share.tenant.key, asyncio.get_running_loop()
        due = self._due.setdefault(key, {})
        if member not in due:
            due[member] = share, loop.create_future()
        if key not in self._working:
            self._working[key] = loop.create_task(self._work(key, due))
        return due[member][1]

    def close(self) -> None:
        """Cancel all checks. A running one finishes without effect."""
        for working in self._working.values():
            working.cancel()
        for due in self._due.values():
            for _, future in due.values():
                future.cancel()
        self._due.clear()
        self._working.clear()

    async def _work(self, key: str, due: dict[KernelProcess, tuple[ShareLedger, asyncio.Future[None]]]) -> None:
        while due:
            # Remove it before the check: what the process does from here on needs another check.
            member = next(iter(due))
            share, future = due.pop(member)
            pause_seconds = 0.0
            try:
                if share.contains(member):
                    found, took_seconds = await _in_thread(member.pid, share.ledger.device_inode, self._proc)
                    pause_seconds = REST * took_seconds
                    if found.known and found.link is None and share.contains(member):
                        self._gone(share, member)
            except Exception:  # such as no thread, or a full disk; go on with the others
                logger.exception("Could not check a process for exec", extra={"pid": member.pid})
                pause_seconds = FAILED_SECONDS
            finally:
                if not future.done():
                    future.set_result(None)
            await asyncio.sleep(pause_seconds)
        del self._due[key], self._working[key]


async def _in_thread(pid: int, device_inode: tuple[int, int], proc: Path) -> tuple[Mapping, float]:
    """Find where a process has a file mapped, in a daemon thread, and the CPU seconds that this took.

    Time spent waiting for the process is not counted: it costs the node nothing.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[tuple[Mapping, float]] = loop.create_future()

    def finish(found: Mapping, took_seconds: float) -> None:
        if not answer.done():
            answer.set_result((found, took_seconds))

    def read() -> None:
        found = kernel_process.mapping(pid, device_inode, proc=proc)
        with contextlib.suppress(RuntimeError):  # the loop has ended since
            loop.call_soon_threadsafe(finish, found, time.thread_time())

    threading.Thread(target=read, name="exec-check", daemon=True).start()
    return await answer
