"""The store on the API server: a live copy of GPUNodes and Nodes, and one writer at a time for each GPUNode."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final

from gpushare import codec, contract, errors, pod, resource_quota
from gpushare.cluster import api_client, api_errors, backoff, informer
from gpushare.cluster import object_store as objects
from gpushare.gpunode import GpuNode
from gpushare.nodefilters import NodeSpec
from gpushare.placement import NodeView
from gpushare.refusal import Cause, Refusal
from gpushare.request import Request
from webhook.metrics import Metrics
from webhook.store import ledger_store
from webhook.store.allowances import Allowances
from webhook.store.chooser import AS_IT_IS, Chooser
from webhook.store.contention import Contention
from webhook.store.deleted_nodes import DeletedNodes
from webhook.store.node_ledger import NodeLedger, PendingChange
from webhook.store.occupancy import Occupancy
from webhook.store.unconfirmed import UnconfirmedReservations

logger = logging.getLogger(__name__)

NODES_PATH: Final = "/api/v1/nodes"
ATTEMPTS: Final = 16
FIRST_PAUSE_SECONDS: Final = 0.005
MAX_PAUSE_SECONDS: Final = 0.5
NODES_AT_ONCE: Final = 64  # some milliseconds
SIBLINGS: Final = 4  # where so many others wait for a write, more will come in a moment
MIN_LINGER_SECONDS: Final = 0.02
MAX_LINGER_SECONDS: Final = 0.1
MAX_REFUSED: Final = 3  # changes in a row, each written alone: the others would be refused, too
STALE_SECONDS: Final = 300.0  # longer than an API server is away that restarts, and than the pause after that
COUNTED_BY_PLACER: Final = (
    f"{contract.EXCLUSION} in a namespace whose ResourceQuota limits requests.{contract.RESOURCE_PERCENT}: the placer, "
    "which counts the namespace's exclusive GPUs, places it once it is stored"
)
MAX_ASKED_SECONDS: Final = 2.0  # a review cannot wait longer, whatever the API server asks for


class ApiStore:
    """See `ledger_store.LedgerStore`. `run` keeps it true.

    on_refused: called with a GPUNode that the API server does not store, and why. lifetime_seconds: for how long a
    reservation waits for its pod. pods: those with a share.
    """

    instead = AS_IT_IS

    def __init__(
        self,
        api: api_client.ApiClient,
        measures: Metrics,
        *,
        on_refused: Callable[[Mapping[str, Any], str], None] = lambda *_: None,
        lifetime_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._metrics = measures
        self._ledgers: dict[str, NodeLedger] = {}
        self._writers: dict[NodeLedger, asyncio.Task[None]] = {}
        self._listeners: list[Callable[[], None]] = []
        self._committing = 0
        self._write_seconds = 0.0  # that the last write took
        self.contention = Contention()
        self._on_refused = on_refused
        self._clock = clock
        self.deleted = DeletedNodes(clock)
        self._gpunodes = informer.Informer(api, contract.GPUNODE_PATH, clock=clock)
        self._gpunodes.subscribe(self._gpunode_changed)
        self._nodes = informer.Informer(api, NODES_PATH, transform=_machine)
        self._nodes.subscribe(self._node_changed)
        self._lesson = asyncio.Event()
        self._to_show = asyncio.Event()  # nodes have changed
        self._all_shown = asyncio.Event()  # set once the engine was shown all there was at the start
        self._occupancy = Occupancy(
            api,
            holds=self._holds,
            is_full=self._is_full,
            freed=self._freed,
            came=self._came,
            changed=self._tell,
            due=self._lesson.set,
            clock=clock,
        )
        self.pods = self._occupancy.ours
        self._cache = self._occupancy.cache
        self._assumed = self._occupancy.assumed
        self._allowances = Allowances(api)
        self.uncounted = self._allowances.uncounted
        self._unclaimed = UnconfirmedReservations(clock, self._occupancy.is_named, lifetime_seconds=lifetime_seconds)
        self.chooser = Chooser(
            self.view,
            self._cache,
            self._key,
            self._occupancy.unbindable.avoided,
            left=lambda: self.contention.left(now=clock()),
            bound=self._allowances.bound,
        )
        self._cache.on_change(lambda _: self._to_show.set())

    async def run(self) -> None:
        """Keep the copies true until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._gpunodes.run())
            tasks.create_task(self._nodes.run())
            tasks.create_task(self._occupancy.run())
            tasks.create_task(self._learn())
            tasks.create_task(self._show_nodes())
            tasks.create_task(self._allowances.run())

    async def synced(self) -> None:
        """Wait until every collection has been read once, and the engine knows the nodes."""
        await self._all_shown.wait()

    async def _read(self) -> None:
        await self._gpunodes.synced.wait()
        await self._nodes.synced.wait()
        await self._occupancy.synced()
        await self._allowances.synced()

    def missing(self) -> str | None:
        """What keeps us from answering, as a sentence; None when nothing does."""
        for name, copy in (("GPUNodes", self._gpunodes), ("Nodes", self._nodes)):
            if not copy.synced.is_set():
                return f"the {name} have not been read yet"
        shown = None if self._all_shown.is_set() else "the GPUs of the nodes have not been counted yet"
        return self._occupancy.missing() or self._allowances.missing() or shown

    def silence(self) -> str | None:
        """What has not been kept true for long, as a sentence; we go on answering from what we know."""
        informers = (self._gpunodes, self._nodes, *self._occupancy.informers, *self._allowances.informers)
        return informer.stale_reason(informers, longest_seconds=STALE_SECONDS)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change of a GPUNode or Node, and when pods leave room on a node with GPUs."""
        self._listeners.append(listener)

    def views(self) -> Iterable[NodeView]:
        """Every node with GPUs, with all that this process has promised."""
        return [ledger.view for ledger in self._ledgers.values()]

    def view(self, name: str) -> NodeView | None:
        """The node of this name as this process sees it, or None."""
        ledger = self._ledgers.get(name)
        return ledger.view if ledger else None

    def stored(self) -> list[GpuNode]:
        """The nodes as they are stored, without what waits to be written."""
        return [ledger.node for ledger in self._ledgers.values()]

    def document(self, name: str) -> Mapping[str, Any] | None:
        """The GPUNode object as it is stored."""
        ledger = self._ledgers.get(name)
        return ledger.document if ledger else None

    def premature(self, namespace: str, manifest: Mapping[str, Any], request: Request) -> Refusal | None:
        """Why nothing is reserved for a pod before it is stored."""
        lacks = self._allowances.lacks(namespace, resource_quota.asked(manifest, request))
        if lacks is not None:
            return Refusal(lacks, cause=Cause.QUOTA)
        if request.constraints.exclusion and self._allowances.bound(namespace):
            return Refusal(COUNTED_BY_PLACER, cause=Cause.QUOTA)  # several replicas would each use up the bound
        return self._unclaimed.why_not(namespace)

    def expect(self, manifest: Mapping[str, Any], name: str, allocation_id: str) -> Callable[[], None]:
        """Let the pod take room on the node until it is seen there, or the ledger no longer has its allocation."""
        return self._assumed.make(manifest, name, allocation_id)

    async def refresh(self, name: str) -> None:
        """Read one node from the API server; raises UnreachableError."""
        ledger = self._ledgers.get(name)
        if ledger is None:
            return
        known = ledger.document
        try:
            async with asyncio.timeout(MAX_ASKED_SECONDS):
                stored = await self._api.get(f"{contract.GPUNODE_PATH}/{name}")
        except api_errors.NotFound:
            return
        except (api_errors.ClusterError, TimeoutError) as error:
            raise ledger_store.UnreachableError(str(error) or f"no answer in {MAX_ASKED_SECONDS:g} s") from error
        ledger.see(objects.drop_managed_fields(stored), instead_of=known)

    async def commit(self, name: str, change: ledger_store.Change) -> GpuNode:
        """Write the change together with whatever else waits for this node."""
        ledger = self._ledgers.get(name)
        if ledger is None:
            raise errors.LedgerError(f"there is no GPUNode {name}")
        self._committing += 1
        try:
            done = ledger.add(change)
            self._cache.forget(name)
            if ledger not in self._writers:
                self._writers[ledger] = asyncio.create_task(self._write_all(name, ledger), name=f"write {name}")
            return await done
        finally:
            self._committing -= 1
            self._assumed.sweep(name)
            self._cache.forget(name)

    async def close(self) -> None:
        """Stop the writers and fail all pending changes."""
        for task in [*self._writers.values()]:
            task.cancel()
        await asyncio.gather(*self._writers.values(), return_exceptions=True)

    async def _show_nodes(self) -> None:
        """Show the engine in portions what has changed, all of it at the start: the next pod would wait for it."""
        await self._read()
        while True:
            self._to_show.clear()
            if self.chooser.show_some(NODES_AT_ONCE):
                await asyncio.sleep(0)
                continue
            self._all_shown.set()
            await self._to_show.wait()

    async def _learn(self) -> None:
        """Let placement know what the cluster asks for, now and then."""
        while True:
            await self._lesson.wait()
            self._lesson.clear()
            mix = self._occupancy.workload.take()
            await self.chooser.learn_aside(mix)
            logger.info("Placement has learned what is asked for", extra={"pods": mix.pods})

    async def _write_all(self, name: str, ledger: NodeLedger) -> None:
        """Write until nothing waits."""
        try:
            while ledger.has_waiting:
                if self._committing > SIBLINGS:
                    # For others to share the write: the longer one takes, the longer is it worth waiting for them.
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
            del self._writers[ledger]

    async def _write(self, name: str, ledger: NodeLedger, batch: list[PendingChange]) -> None:
        path = f"{contract.GPUNODE_PATH}/{name}"
        for attempt in range(1, ATTEMPTS + 1):
            document, batch = ledger.draft(batch)
            if document is None or not batch:
                _answer(batch, ledger.node)
                return
            began = self._clock()
            try:
                stored = objects.drop_managed_fields(await self._api.replace(path, document))
                self._write_seconds = self._clock() - began
            except api_errors.NotFound:
                if self._ledgers.get(name) is ledger:  # and not the one that was recreated meanwhile
                    self._forget(name)
                _refuse(batch, errors.LedgerError(f"there is no GPUNode {name} any more"))
                return
            except (api_errors.Conflict, api_errors.Unavailable) as error:
                is_conflict = isinstance(error, api_errors.Conflict)
                if is_conflict:
                    self.contention.lost(name, now=self._clock())
                self._metrics.wrote("conflict" if is_conflict else "failed", changes=0)
                logger.info("Writing a GPUNode again", extra={"node": name, "attempt": attempt, "err": str(error)})
                asked_seconds = getattr(error, "retry_after_seconds", None) or 0.0
                if attempt == ATTEMPTS or not await self._read_again(path, ledger, attempt, asked_seconds):
                    if not is_conflict:
                        self.contention.refused(name, now=self._clock())
                    _refuse(batch, ledger_store.UnreachableError(str(error)))
                    return
            except api_errors.ClusterError as error:
                self._metrics.wrote("refused", changes=0)
                if len(batch) > 1:
                    await self._write_singly(name, ledger, batch)
                    return
                logger.error("The API server refused a GPUNode", extra={"node": name, "err": str(error)})  # noqa: TRY400
                self.contention.refused(name, now=self._clock())
                self._on_refused(ledger.document, str(error))
                _refuse(batch, ledger_store.WriteRefusedError(str(error)))
                return
            else:
                self.contention.written(name)
                self._metrics.wrote("written", changes=len(batch))
                ledger.see(stored)
                _answer(batch, ledger.node if ledger.document is stored else codec.read(stored))
                return

    async def _write_singly(self, name: str, ledger: NodeLedger, batch: list[PendingChange]) -> None:
        """After a refusal of all together: it may be on account of one."""
        in_a_row = 0
        for position, pending in enumerate(batch):
            await self._write(name, ledger, [pending])
            error = pending.done.exception() if pending.done.done() and not pending.done.cancelled() else None
            if not isinstance(error, ledger_store.WriteRefusedError):
                in_a_row = 0
                continue
            in_a_row += 1
            if in_a_row == MAX_REFUSED:
                _refuse(batch[position + 1 :], error)
                return

    async def _read_again(self, path: str, ledger: NodeLedger, attempt: int, asked_seconds: float) -> bool:
        """After a conflict, or an answer that was lost: look what is true now. Whether that can be told."""
        if attempt > 1 or asked_seconds:
            pause = backoff.pause_seconds(attempt, first_seconds=FIRST_PAUSE_SECONDS, most_seconds=MAX_PAUSE_SECONDS)
            await asyncio.sleep(max(pause, min(asked_seconds, MAX_ASKED_SECONDS)))
        known = ledger.document
        try:
            ledger.see(objects.drop_managed_fields(await self._api.get(path)), instead_of=known)
        except api_errors.ClusterError as error:
            logger.warning("Could not read a GPUNode", extra={"path": path, "err": str(error)})
            return isinstance(error, api_errors.Unavailable | api_errors.NotFound)
        return True

    def _gpunode_changed(self, change: objects.Delta) -> None:
        self.deleted.changed(change, watching=self._gpunodes.is_watching, listed_at=self._gpunodes.listed_at)
        if change.new is None:
            self._forget(change.key.name)
        elif (known := self._ledgers.get(change.key.name)) is not None:
            known.see(change.new, instead_of=known.document if self._gpunodes.went_back else None)
        else:
            name = change.key.name
            self._ledgers[name] = NodeLedger(change.new, lambda ledger: self._moved(name, ledger))
        self._assumed.sweep(change.key.name)
        self._cache.forget(change.key.name)
        self._occupancy.ledger_changed(change.key.name)
        self._tell()

    def _node_changed(self, change: objects.Delta) -> None:
        before, after = (item["machine"] if item is not None else None for item in (change.old, change.new))
        if before != after:  # most changes are heartbeats, of which nothing is left in what we keep
            self._cache.put_machine(change.key.name, after)
            self._tell()

    def _key(self, manifest: Mapping[str, Any]) -> Hashable:
        """By which key the scheduler cache may count the pod."""
        promised = self._assumed.key(manifest)
        return objects.key_of(manifest) if promised is None and pod.uid(manifest) else promised

    def _holds(self, name: str, allocation_id: str) -> bool:
        ledger = self._ledgers.get(name)
        return ledger is not None and ledger.holds(allocation_id)

    def _is_full(self, name: str, amounts: tuple[tuple[str, int], ...]) -> bool:
        ledger = self._ledgers.get(name)
        return ledger is not None and ledger.view.is_full(amounts)

    def _freed(self, name: str) -> None:
        if name in self._ledgers:
            self._tell()

    def _came(self, allocation_id: str) -> None:
        self._unclaimed.seen(allocation_id)

    def _moved(self, name: str, ledger: NodeLedger) -> None:
        self._unclaimed.look(ledger.view.node, ledger.node)
        self.chooser.moved(name)
        self._to_show.set()

    def _forget(self, name: str) -> None:
        self._ledgers.pop(name, None)
        self._unclaimed.forget(name)
        self.chooser.moved(name)
        self._to_show.set()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()


def _answer(batch: Iterable[PendingChange], stored: GpuNode) -> None:
    for pending in batch:
        if not pending.done.done():
            pending.done.set_result(stored)


def _refuse(batch: Iterable[PendingChange], error: Exception) -> None:
    for pending in batch:
        if not pending.done.done():
            pending.done.set_exception(error)


def _machine(item: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a Node; its list of images alone is more than all the rest."""
    metadata = item["metadata"]
    return {
        "metadata": {key: metadata[key] for key in ("name", "uid", "resourceVersion") if key in metadata},
        "machine": NodeSpec.of(item),
    }
