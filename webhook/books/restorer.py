"""The restorer: opens new GPUNodes, and writes again the shares of living pods that the ledger has lost."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from gpushare import codec, contract, errors
from gpushare.cluster import api_client, api_errors, compare_and_swap, events
from gpushare.gpunode import GpuNode
from webhook.books.touched_nodes import Touched
from webhook.ledger import ledger_store, restoring
from webhook.ledger.api_store import ApiStore
from webhook.pods.stored_pod import Pod

logger = logging.getLogger(__name__)

PODS_SELECTOR: Final = f"{contract.SHARE_LABEL}={contract.SHARE_LABEL_VALUE}"
SURE_SECONDS: Final = 3.0  # pods and GPUNodes come to us by two watches, of which either may be late
AGAIN_SECONDS: Final = 30.0


class Restorer:
    """`placed_beside`: the pods of ours that say that they were placed on another node than these.

    lifetime_seconds: how long what was placed may be on its way. is_first:
    whether nobody placed anything before us, as far as the election knows.
    """

    def __init__(
        self,
        api: api_client.ApiClient,
        ledger_now: ApiStore,
        recorder: events.Recorder,
        *,
        placed_beside: Callable[[Collection[str]], Sequence[Pod]],
        lifetime_seconds: float,
        is_first: Callable[[], bool],
    ) -> None:
        self._api = api
        self._store = ledger_now
        self._placed_beside = placed_beside
        self._lost: dict[str, list[Pod]] = {}  # by node
        self._recorder = recorder
        self._lifetime_seconds = lifetime_seconds
        self._is_first = is_first
        self._began = math.inf
        self._found_open = False  # when we began; nobody but a placer opens a GPUNode
        self._missed: dict[str, float] = {}  # uid of a pod -> since when its share is missing, or when to look again

    async def adopt(self, touched: Touched, *, now: float) -> float | None:
        """Do what is due; return when to look again, by the clock that `now` is of. `touched`: since the last time."""
        if self._began == math.inf:
            self._began = now
            documents = (self._store.document(node.name) for node in self._store.stored())
            self._found_open = any(restoring.is_open(document) for document in documents if document)
        open_at = await self._open_new(now)
        nodes = [
            node
            for node in touched.nodes
            if (document := self._store.document(node.name)) and restoring.is_open(document)
        ]
        self._lost = {name: pods for name, pods in self._lost.items() if name not in touched.names}
        self._lost.update(restoring.lost(nodes, touched.pods))
        found = self._lost
        there = {node.name for node in self._store.stored()}
        homeless = restoring.homeless(there, self._placed_beside(there))
        uids = {pod.ref.uid for pods in (*found.values(), homeless) for pod in pods}
        self._missed = {uid: self._missed.get(uid, now + SURE_SECONDS) for uid in uids}
        for name, pods in list(found.items()):
            due = [pod for pod in pods if self._missed[pod.ref.uid] <= now]
            if due:
                self._missed.update((pod.ref.uid, now + AGAIN_SECONDS) for pod in due)
                await self._adopt_on(name, due)
        for pod in homeless:
            if self._missed[pod.ref.uid] <= now:
                self._missed[pod.ref.uid] = now + AGAIN_SECONDS
                self._tell_homeless(pod)
        return min((*self._missed.values(), *open_at), default=None)

    async def _open_new(self, now: float) -> list[float]:
        """Open what is closed, once its agent has said which GPUs there are; return when the others may be."""
        closed = [
            node.name
            for node in self._store.stored()
            if node.gpus and (document := self._store.document(node.name)) and not restoring.is_open(document)
        ]
        due = {name: self._open_at(name, now) for name in closed}
        later = [at for at in due.values() if at > now]
        if len(later) == len(due):
            return later
        try:
            # By a read that lags behind nothing; pods that come later cannot have been placed on a closed node.
            query = {"labelSelector": PODS_SELECTOR}
            pods = (await self._api.list("/api/v1/pods", query, keep=Pod.of)).items
        except api_errors.ClusterError as error:
            logger.warning("Could not list pods", extra={"err": str(error)})
            return later
        for name, at in due.items():
            if at <= now:
                await self._open(name, pods)
        return later

    def _open_at(self, name: str, now: float) -> float:
        """When nothing can be on its way that was placed there before and that we do not know of."""
        since = self._store.deleted.unknown_since(name)
        is_first = self._is_first() and not self._found_open
        if since is None or (is_first and since <= self._began):
            return now  # before the first placer began, no GPUNode was ever open
        return since + self._lifetime_seconds

    async def _open(self, name: str, pods: Sequence[Pod]) -> None:
        adopted: list[Pod] = []
        failed: dict[str, str] = {}

        def change(document: dict[str, Any]) -> dict[str, Any] | None:
            nonlocal adopted, failed
            if restoring.is_open(document):
                adopted, failed = [], {}
                return None
            node = codec.read(document)
            adopted = restoring.lost([node], pods).get(name, [])
            before = self._store.deleted.entries(name)
            is_known = self._store.deleted.unknown_since(name) is None
            after, failed = restoring.adopt(node, adopted, before if is_known else ())
            after = restoring.carried(after, before, pods)
            return {**document, "spec": {**(document.get("spec") or {}), **codec.to_spec(after)}}

        try:
            await compare_and_swap.update(self._api, f"{contract.GPUNODE_PATH}/{name}", change)
        except api_errors.ClusterError as error:
            logger.warning("Could not open a GPUNode", extra={"node": name, "err": str(error)})
            return
        logger.info("Opened a GPUNode", extra={"node": name, "adopted": len(adopted) - len(failed)})
        self._tell(name, adopted, failed)

    def _tell_homeless(self, pod: Pod) -> None:
        name = pod.placed_on
        logger.warning("A living pod has no GPUNode", extra={"node": name, "pod": str(pod.ref)})
        note = f"there is no GPUNode {name}, in which its share was written down: it is again when the agent makes one"
        self._recorder.record(pod.reference, contract.EVENT_LOST, note, type="Warning", action="Adopt")

    async def _adopt_on(self, name: str, suspects: Sequence[Pod]) -> None:
        pods = [pod for suspect in suspects if (pod := await self._read(suspect)) is not None]
        failed: dict[str, str] = {}
        adopted: list[Pod] = []

        def change(node: GpuNode) -> GpuNode:
            nonlocal adopted, failed
            adopted = restoring.lost([node], pods).get(name, [])
            after, failed = restoring.adopt(node, adopted)
            return after if after.allocations != node.allocations else node

        try:
            await self._store.refresh(name)  # the news of its share may be on its way to us
            await self._store.commit(name, change)
        except (ledger_store.UnreachableError, errors.LedgerError) as error:
            logger.warning("Could not write lost shares again", extra={"node": name, "err": str(error)})
            return
        self._tell(name, adopted, failed)

    async def _read(self, suspect: Pod) -> Pod | None:
        try:
            pod = Pod.of(await self._api.get(suspect.path))
        except api_errors.ClusterError as error:
            logger.info("Could not ask about a pod", extra={"pod": str(suspect.ref), "err": str(error)})
            return None
        return pod if pod.ref.uid == suspect.ref.uid else None

    def _tell(self, name: str, adopted: Sequence[Pod], failed: Mapping[str, str]) -> None:
        for pod in adopted:
            who, why = str(pod.ref), failed.get(pod.ref.uid)
            if why is None:
                logger.warning("Wrote the lost share of a pod again", extra={"node": name, "pod": who})
                note = f"its share on {name} was missing in the ledger and was written again"
                self._recorder.record(pod.reference, contract.EVENT_ADOPTED, note, action="Adopt")
            else:
                logger.error("A living pod has no share in the ledger", extra={"node": name, "pod": who, "err": why})
                note = f"its share on {name} is missing in the ledger and could not be written again: {why}"
                self._recorder.record(pod.reference, contract.EVENT_LOST, note, type="Warning", action="Adopt")
