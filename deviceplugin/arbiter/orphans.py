"""Processes whose ledger is lost: no record names it, so the arbiter cannot read what they hold.

They keep the memory limit that they had. The GPUNode's status says what their share was lent, which counts until they
have ended. They are found by a mapped ledger that belongs to no share here. That reads the node's list of processes, so
it happens once for each share that was lent memory by an earlier arbiter.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from deviceplugin.arbiter import pages
from deviceplugin.arbiter.share_ledgers import ShareLedgers
from deviceplugin.host import kernel_process
from deviceplugin.host.kernel_process import Container, KernelProcess
from gpushare.refusal import Refusal


class Orphans:
    """The orphaned processes, inside a running event loop. identify: returns the container of a process."""

    def __init__(
        self,
        ledgers: ShareLedgers,
        *,
        identify: Callable[[int], Container | Refusal],
        proc: Path = kernel_process.PROC,
    ) -> None:
        self._ledgers = ledgers
        self._identify = identify
        self._proc = proc
        self._by_pod: dict[str, list[KernelProcess]] = {}
        self.on_end: Callable[[], None] = lambda: None  # called when a pod's last orphan has ended

    def exist(self, pod_uid: str) -> bool:
        """Whether an orphaned process of the pod was found and has not ended."""
        return pod_uid in self._by_pod

    def search(self, pod_uids: Collection[str]) -> None:
        """Find the orphaned processes of these pods, and watch them."""
        for pod_uid, process in self._found(pod_uids):
            self._by_pod.setdefault(pod_uid, []).append(process)
            asyncio.get_running_loop().add_reader(process.pidfd, self._ended, pod_uid, process)

    def close(self) -> None:
        """Stop watching."""
        for process in (process for processes in self._by_pod.values() for process in processes):
            self._drop(process)
        self._by_pod.clear()

    def _found(self, pod_uids: Collection[str]) -> Iterator[tuple[str, KernelProcess]]:
        shares = self._ledgers.all()
        holders = (*self._by_pod.values(), *self._ledgers.unreachable.values(), *(s.members.values() for s in shares))
        known = {(process.pid, process.start_ticks) for processes in holders for process in processes}
        for path in self._proc.iterdir():
            who = kernel_process.with_start(int(path.name), proc=self._proc) if path.name.isdecimal() else None
            if who is None or who in known:
                continue
            container = self._identify(who[0])
            if not isinstance(container, Container) or container.pod_uid not in pod_uids:
                continue
            mapped = kernel_process.mapped_files(who[0], proc=self._proc)
            # A process that may not be inspected may have a ledger. A child of a member has its parent's.
            if mapped is not None and pages.MAPPED_LEDGER not in mapped:
                continue
            if any(kernel_process.mapping(who[0], s.ledger.device_inode, proc=self._proc).link for s in shares):
                continue
            if (process := kernel_process.find(*who, proc=self._proc)) is not None:
                yield container.pod_uid, process

    def _ended(self, pod_uid: str, process: KernelProcess) -> None:
        self._drop(process)
        self._by_pod[pod_uid].remove(process)
        if not self._by_pod[pod_uid]:
            del self._by_pod[pod_uid]
            self.on_end()

    def _drop(self, process: KernelProcess) -> None:
        asyncio.get_running_loop().remove_reader(process.pidfd)
        os.close(process.pidfd)
