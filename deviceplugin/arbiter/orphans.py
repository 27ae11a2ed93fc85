"""Processes whose ledger is lost: no record names it, so the arbiter cannot read what they hold.

They keep the memory limit that they had. The GPUNode's status says what their share was lent, which counts until they
have ended. They are found by a mapped ledger that belongs to no share here. That reads the node's list of processes, so
it happens once for each share that was lent memory by an earlier arbiter. Pods determine the
number of processes and mappings, so threads read them, for a bounded time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from deviceplugin.arbiter import pages
from deviceplugin.arbiter.share_ledgers import ShareLedgers
from deviceplugin.host import kernel_process
from deviceplugin.host.kernel_process import Container, KernelProcess
from gpushare.refusal import Refusal

logger = logging.getLogger(__name__)

SEARCH_SECONDS: Final = 2.0  # of CPU time, for a pod
MAX_ORPHANS: Final = 512  # of a pod, each of which takes a file descriptor

_Who = tuple[int, int]  # a process: pid and start ticks
_Inode = tuple[int, int]  # a file: device and inode


class Orphans:
    """The orphaned processes, inside a running event loop. identify: returns the container of a process."""

    def __init__(
        self, ledgers: ShareLedgers, *, identify: Callable[[int], Container | Refusal], proc: Path = kernel_process.PROC
    ) -> None:
        self._ledgers = ledgers
        self._identify = identify
        self._proc = proc
        self._by_pod: dict[str, list[KernelProcess]] = {}
        self._unknown: set[str] = set()  # UIDs of pods whose search goes on, or was too long
        self.on_end: Callable[[], None] = lambda: None  # called when a pod has no orphans any more

    def may_exist(self, pod_uid: str) -> bool:
        """Whether an orphaned process of the pod was found and has not ended, or the search for one has no result."""
        return pod_uid in self._by_pod or pod_uid in self._unknown

    def search(self, pod_uids: Collection[str]) -> None:
        """Start to find and watch the orphaned processes of these pods. Calls `on_end` for each that has none.

        A pod with too many processes or mappings counts as having one until it has ended.
        """
        new = set(pod_uids) - self._unknown
        if not new:
            return
        self._unknown |= new
        loop = asyncio.get_running_loop()

        def inspect(pod_uid: str, processes: Iterable[_Who]) -> None:
            candidates = self._candidates(processes)
            with contextlib.suppress(RuntimeError):  # the loop has ended since
                loop.call_soon_threadsafe(self._found, pod_uid, candidates)

        def search() -> None:
            # One pod's processes may be slow to inspect: the kernel makes a reader wait while they change mappings.
            for pod_uid, processes in self._processes_of(new).items():
                _in_thread(inspect, pod_uid, processes)

        _in_thread(search)

    def close(self) -> None:
        """Stop watching, and ignore searches that have not ended."""
        for process in (process for processes in self._by_pod.values() for process in processes):
            self._drop(process)
        self._by_pod.clear()
        self._unknown.clear()

    def _processes_of(self, pod_uids: Collection[str]) -> dict[str, list[_Who]]:
        """Return the processes of each pod. Runs in a thread."""
        found: dict[str, list[_Who]] = {pod_uid: [] for pod_uid in pod_uids}
        for path in self._proc.iterdir():
            who = kernel_process.with_start(int(path.name), proc=self._proc) if path.name.isdecimal() else None
            container = self._identify(who[0]) if who is not None else None
            if who is not None and isinstance(container, Container) and container.pod_uid in found:
                found[container.pod_uid].append(who)
        return found

    def _candidates(self, processes: Iterable[_Who]) -> dict[_Who, frozenset[_Inode]] | None:
        """Return the processes that may have a ledger, and its inode if known. Runs in a thread.

        None if that takes too long.
        """
        candidates: dict[_Who, frozenset[_Inode]] = {}
        for who in processes:
            if time.thread_time() > SEARCH_SECONDS:
                return None
            ledgers = kernel_process.mapped_inodes(who[0], pages.MAPPED_LEDGER, proc=self._proc)
            if ledgers is None or ledgers:  # a process that may not be inspected may have a ledger
                candidates[who] = ledgers or frozenset()
        return candidates

    def _found(self, pod_uid: str, candidates: Mapping[_Who, frozenset[_Inode]] | None) -> None:
        if pod_uid not in self._unknown:  # closed since
            return
        shares = self._ledgers.all()
        holders = (*self._by_pod.values(), *self._ledgers.unreachable.values(), *(s.members.values() for s in shares))
        members = {(process.pid, process.start_ticks) for processes in holders for process in processes}
        known = {share.ledger.device_inode for share in shares}
        # A child of a member has its parent's ledger.
        left = [who for who, own in (candidates or {}).items() if who not in members and not own & known]
        if candidates is None or len(left) > MAX_ORPHANS:
            extra = {"pod_uid": pod_uid}
            logger.warning("A pod has too many processes to tell which have lost their record", extra=extra)
            return
        self._unknown.remove(pod_uid)
        for who in left:
            if (process := kernel_process.find(*who, proc=self._proc)) is not None:
                self._by_pod.setdefault(pod_uid, []).append(process)
                asyncio.get_running_loop().add_reader(process.pidfd, self._ended, pod_uid, process)
        if pod_uid not in self._by_pod:
            self.on_end()

    def _ended(self, pod_uid: str, process: KernelProcess) -> None:
        self._drop(process)
        self._by_pod[pod_uid].remove(process)
        if not self._by_pod[pod_uid]:
            del self._by_pod[pod_uid]
            self.on_end()

    def _drop(self, process: KernelProcess) -> None:
        asyncio.get_running_loop().remove_reader(process.pidfd)
        os.close(process.pidfd)


def _in_thread(function: Callable[..., None], *values: object) -> None:
    threading.Thread(target=function, args=values, name="orphan-search", daemon=True).start()
