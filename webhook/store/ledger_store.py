"""The ledger as this process sees it, and how it is changed. Two things stand behind it: an API server, or memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from gpushare.gpunode import GpuNode
from gpushare.placement import NodeView
from gpushare.refusal import Refusal
from gpushare.request import Request
from webhook.store.chooser import Chooser, Views

# A GPUNode as it is → as it should be; the very same object when there is nothing to do. It may be called several
# times, each time on what is true then, and only the last counts. It raises LedgerError when the node cannot take it.
Change = Callable[[GpuNode], GpuNode]


class UnreachableError(Exception):
    """The ledger could not be read or written now; whether the change was written is unknown."""


class WriteRefusedError(UnreachableError):
    """The API server does not store this change; another node may take what this one does not."""


class LedgerStore(Protocol):
    """Views include everything this process has committed, and what it is about to."""

    @property
    def chooser(self) -> Chooser:
        """Who says where a pod goes."""

    @property
    def instead(self) -> Views:
        """The nodes that are not as the chooser knows them, to be shown to it with each question."""

    def views(self) -> Iterable[NodeView]:
        """Every node with GPUs, as it is now."""

    def view(self, node: str) -> NodeView | None:
        """One node, or None if there is no such GPUNode."""

    def expect(self, manifest: Mapping[str, Any], node: str, allocation_id: str) -> Callable[[], None]:
        """Count the pod as being on the node from now on; called just before its allocation is committed.

        It ends by itself: when the pod is seen, when the allocation is not in the ledger (any more), or when the same
        manifest is expected elsewhere; and when what is returned is called. The pod is not in its own way when it is
        judged again.
        """

    async def commit(self, node: str, change: Change) -> GpuNode:
        """Write the change; return the node as it is stored then.

        Raises what `change` raises, LedgerError when there is no such node any more, WriteRefusedError and
        UnreachableError.
        """


class LiveLedger(LedgerStore, Protocol):
    """The ledger itself, and no draft of it: what is asked of it besides."""

    def missing(self) -> str | None:
        """What keeps the views from being known, as a sentence; None when nothing does."""

    def stored(self) -> Iterable[GpuNode]:
        """The same nodes without what is only about to be committed, and may never be."""

    def premature(self, namespace: str, manifest: Mapping[str, Any], request: Request) -> Refusal | None:
        """Why nothing is reserved for a pod before it is stored: it will be refused, or others like it were."""

    def uncounted(self, namespace: str, manifest: Mapping[str, Any], request: Request) -> str | None:
        """Return why the ResourceQuotas of a namespace cannot count what is requested; None if they can."""

    async def refresh(self, node: str) -> None:
        """Make sure that the view of this node, if there is one, has all that was stored when this was called.

        Raises UnreachableError.
        """
