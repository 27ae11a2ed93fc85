"""GpuNodeWriter: writes the pending changes of GPUNodes, one writer per GPUNode at a time.

All changes of a GPUNode that wait share the next write (group commit, see `node_ledger`). On a conflict, or after an
answer that was lost, the GPUNode is read again and the changes are applied to what is stored then.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from gpushare import codec, contract, errors
from gpushare.cluster import api_client, api_errors, retrying
from gpushare.cluster import object_store as objects
from gpushare.gpunode import GpuNode
from webhook.metrics import Metrics
from webhook.store import ledger_store
from webhook.store.avoided_nodes import Contention
from webhook.store.node_ledger import NodeLedger, PendingChange

logger = logging.getLogger(__name__)

ATTEMPTS: Final = 16
FIRST_PAUSE_SECONDS: Final = 0.005
MAX_PAUSE_SECONDS: Final = 0.5
SIBLINGS: Final = 4  # if more changes than this are pending, others will soon join the write
MIN_LINGER_SECONDS: Final = 0.02
MAX_LINGER_SECONDS: Final = 0.1
MAX_REFUSED: Final = 3  # changes in a row, each written alone, before the rest is given up
MAX_WAIT_SECONDS: Final = 2.0  # a review cannot wait longer, even if the API server sends a longer Retry-After


@dataclasses.dataclass(eq=False)
class GpuNodeWriter:
    """Commits changes of GPUNodes; calls `on_refused` for a rejected one, `on_deleted` for one that is gone."""

    api: api_client.ApiClient
    metrics: Metrics
    contention: Contention
    _: dataclasses.KW_ONLY
    on_refused: Callable[[Mapping[str, Any], str], None]
    on_deleted: Callable[[str, NodeLedger], None]
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._tasks: dict[NodeLedger, asyncio.Task[None]] = {}
        self._pending: set[asyncio.Future[GpuNode]] = set()  # changes that are not written yet
        self._write_seconds = 0.0  # duration of the last write

    def submit(self, name: str, ledger: NodeLedger, change: ledger_store.Change) -> asyncio.Future[GpuNode]:
        """Add a change to the next write; the result is the GPUNode as stored then. Raises errors of `change`."""
        done = ledger.add(change)
        self._pending.add(done)
        done.add_done_callback(self._pending.discard)
        if ledger not in self._tasks:
            self._tasks[ledger] = asyncio.create_task(self._write_all(name, ledger), name=f"write {name}")
        return done

    async def refresh(self, name: str, ledger: NodeLedger) -> None:
        known = ledger.document
        try:
            async with asyncio.timeout(MAX_WAIT_SECONDS):
                stored = await self.api.get(f"{contract.GPUNODE_PATH}/{name}")
        except api_errors.NotFound:
            return
        except (api_errors.ClusterError, TimeoutError) as error:
            raise ledger_store.UnreachableError(str(error) or f"no answer in {MAX_WAIT_SECONDS:g} s") from error
        ledger.see(objects.drop_managed_fields(stored), instead_of=known)

    async def close(self) -> None:
        for task in [*self._tasks.values()]:
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _write_all(self, name: str, ledger: NodeLedger) -> None:
        try:
            while ledger.has_waiting:
                if len(self._pending) > SIBLINGS:
                    # Other changes join the write: the longer a write takes, the longer it is worth waiting for them.
                    await asyncio.sleep(min(max(MIN_LINGER_SECONDS, self._write_seconds), MAX_LINGER_SECONDS))
                await self._write(name, ledger, ledger.begin())
                ledger.end()
        except asyncio.CancelledError:
            ledger.fail(ledger_store.UnreachableError("shutting down"))
            raise
        except Exception as error:
            logger.exception("Failed to write a GPUNode", extra={"node": name})
            ledger.fail(ledger_store.UnreachableError(str(error)))
        finally:
            del self._tasks[ledger]

    async def _write(self, name: str, ledger: NodeLedger, batch: list[PendingChange]) -> None:
        path = f"{contract.GPUNODE_PATH}/{name}"
        for attempt in range(1, ATTEMPTS + 1):
            document, batch = ledger.draft(batch)
            if document is None or not batch:
                _end(batch, ledger.node)
                return
            began = self.clock()
            try:
                stored = objects.drop_managed_fields(await self.api.replace(path, document))
                self._write_seconds = self.clock() - began
            except api_errors.NotFound:
                self.on_deleted(name, ledger)
                _end(batch, errors.LedgerError(f"there is no GPUNode {name} any more"))
                return
            except (api_errors.Conflict, api_errors.Unavailable) as error:
                is_conflict = isinstance(error, api_errors.Conflict)
                if is_conflict:
                    self.contention.lost(name, now=self.clock())
                self.metrics.wrote("conflict" if is_conflict else "failed", changes=0)
                logger.info("Retrying to write a GPUNode", extra={"node": name, "attempt": attempt, "err": str(error)})
                requested_seconds = getattr(error, "retry_after_seconds", None) or 0.0
                if attempt == ATTEMPTS or not await self._read_again(path, ledger, attempt, requested_seconds):
                    if not is_conflict:
                        self.contention.refused(name, now=self.clock())
                    _end(batch, ledger_store.UnreachableError(str(error)))
                    return
            except api_errors.ClusterError as error:
                self.metrics.wrote("refused", changes=0)
                if len(batch) > 1:
                    await self._write_singly(name, ledger, batch)
                    return
                logger.error("The API server rejected a GPUNode", extra={"node": name, "err": str(error)})  # noqa: TRY400
                self.contention.refused(name, now=self.clock())
                self.on_refused(ledger.document, str(error))
                _end(batch, ledger_store.WriteRefusedError(str(error)))
                return
            else:
                self.contention.written(name)
                self.metrics.wrote("written", changes=len(batch))
                ledger.see(stored)
                _end(batch, ledger.node if ledger.document is stored else codec.read(stored))
                return

    async def _write_singly(self, name: str, ledger: NodeLedger, batch: list[PendingChange]) -> None:
        """Write each change alone, after all together were rejected: a single change may be the cause."""
        in_a_row = 0
        for position, pending in enumerate(batch):
            await self._write(name, ledger, [pending])
            error = pending.done.exception() if pending.done.done() and not pending.done.cancelled() else None
            if not isinstance(error, ledger_store.WriteRefusedError):
                in_a_row = 0
                continue
            in_a_row += 1
            if in_a_row == MAX_REFUSED:
                _end(batch[position + 1 :], error)
                return

    async def _read_again(self, path: str, ledger: NodeLedger, attempt: int, requested_seconds: float) -> bool:
        """Pause and read the GPUNode after a failed write; return whether another attempt makes sense."""
        if attempt > 1 or requested_seconds:
            pause = retrying.pause_seconds(attempt, first_seconds=FIRST_PAUSE_SECONDS, most_seconds=MAX_PAUSE_SECONDS)
            await asyncio.sleep(max(pause, min(requested_seconds, MAX_WAIT_SECONDS)))
        known = ledger.document
        try:
            ledger.see(objects.drop_managed_fields(await self.api.get(path)), instead_of=known)
        except api_errors.ClusterError as error:
            logger.warning("Could not read a GPUNode", extra={"path": path, "err": str(error)})
            return isinstance(error, api_errors.Unavailable | api_errors.NotFound)
        return True


def _end(batch: Iterable[PendingChange], result: GpuNode | Exception) -> None:
    for pending in batch:
        if pending.done.done():
            continue
        if isinstance(result, Exception):
            pending.done.set_exception(result)
        else:
            pending.done.set_result(result)
