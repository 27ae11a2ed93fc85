"""Which processes live on as other programs, looked at apart from the loop that hands out leases.

What a process has mapped can be a very long text, and the kernel writes it only while nobody changes the process's
memory: one that forks, or gives back very much, makes whoever reads wait. So each look has a thread, which the loop
never waits for. Of one share there is one look at a time, for a twentieth of a processor at most: however much its
processes have mapped and however often they ask to be looked at, looks at other shares do not wait for it, and it costs
the node no more than that.
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

REST: Final = 19  # times as long as a look kept a processor busy, until the next one at the same share
FAILED_SECONDS: Final = 1.0  # after a look that could not be made


class ExecChecker:
    """ExecChecker that are due, by share. `gone`: told of a group and its member which no longer has the ledger mapped."""

    def __init__(self, gone: Callable[[ShareLedger, KernelProcess], None], *, proc: Path = kernel_process.PROC) -> None:
        self._gone = gone
        self._proc = proc
        self._due: dict[str, dict[KernelProcess, tuple[ShareLedger, asyncio.Future[None]]]] = {}
        self._working: dict[str, asyncio.Task[None]] = {}

    def check(self, chosen: ShareLedger, member: KernelProcess) -> asyncio.Future[None]:
        """Have a member looked at from now on; done once it was, and `gone` told. However often it is asked, once."""
        key, loop = chosen.tenant.key, asyncio.get_running_loop()
        due = self._due.setdefault(key, {})
        if member not in due:
            due[member] = chosen, loop.create_future()
        if key not in self._working:
            self._working[key] = loop.create_task(self._work(key, due))
        return due[member][1]

    def close(self) -> None:
        """Forget what is due; a look that goes on is nobody's."""
        for working in self._working.values():
            working.cancel()
        for due in self._due.values():
            for _, asked in due.values():
                asked.cancel()
        self._due.clear()
        self._working.clear()

    async def _work(self, key: str, due: dict[KernelProcess, tuple[ShareLedger, asyncio.Future[None]]]) -> None:
        while due:
            # No longer due before it is looked at: what it becomes meanwhile is for another look.
            member = next(iter(due))
            chosen, asked = due.pop(member)
            pause_seconds = 0.0
            try:
                if chosen.contains(member):
                    seen, took_seconds = await _in_thread(member.pid, chosen.ledger.device_inode, self._proc)
                    pause_seconds = REST * took_seconds
                    if seen.known and seen.link is None and chosen.contains(member):
                        self._gone(chosen, member)
            except Exception:  # no thread to be had, or a full disk: the others are looked at all the same
                logger.exception("Could not look at a process", extra={"pid": member.pid})
                pause_seconds = FAILED_SECONDS
            finally:
                if not asked.done():
                    asked.set_result(None)
            await asyncio.sleep(pause_seconds)
        del self._due[key], self._working[key]


async def _in_thread(pid: int, device_inode: tuple[int, int], proc: Path) -> tuple[Mapping, float]:
    """Where a process has a file mapped, found by a thread of its own, which does not keep us from ending.

    And how many seconds of a processor that took: to wait for the process costs nobody anything.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[tuple[Mapping, float]] = loop.create_future()

    def tell(seen: Mapping, took_seconds: float) -> None:
        if not answer.done():
            answer.set_result((seen, took_seconds))

    def look() -> None:
        seen = kernel_process.mapping(pid, device_inode, proc=proc)
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(tell, seen, time.thread_time())

    threading.Thread(target=look, name="look", daemon=True).start()
    return await answer
