"""The ledger as this process sees it, and how it is changed; implemented on an API server and in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from gpushare.gpunode import GpuNode
from gpushare.placement import NodeView
from gpushare.refusal import Refusal
from gpushare.request import Request
from webhook.store.chooser import Chooser, Views

# A GPUNode → the changed GPUNode, or the very same object if nothing is to be done. It may be called several times, on
# newer states, and only the last result counts. It raises LedgerError if the node has no room for the change.
Change = Callable[[GpuNode], GpuNode]


class UnreachableError(Exception):
    """The ledger could not be read or written; it is unknown whether the change was written."""


class WriteRefusedError(UnreachableError):
    """The API server rejects this change; a change of another node may succeed."""


class LedgerStore(Protocol):
    """A ledger whose views include everything that this process has committed or is about to commit."""

    @property
    def chooser(self) -> Chooser:
        """The placement engine of this ledger."""

    @property
    def overrides(self) -> Views:
        """Views of nodes that differ from those the chooser knows; pass them with each call."""

    def views(self) -> Iterable[NodeView]:
        """Return every node with GPUs."""

    def view(self, node: str) -> NodeView | None:
        """Return one node, or None if there is no such GPUNode."""

    def assume(
        self, manifest: Mapping[str, Any], request: Request, node: str, allocation_id: str
    ) -> Callable[[], None]:
        """Count the pod on the node from now on; called just before its allocation is committed.

        That ends when the pod is seen there, when the ledger does not have the allocation (any more), when the same
        manifest is assumed elsewhere, or when the returned function is called. The pod itself is not counted when it is
        placed again.
        """

    async def commit(self, node: str, change: Change) -> GpuNode:
        """Write the change; return the node as it is stored then.

        Raises the errors of `change`, LedgerError if the node no longer exists, WriteRefusedError and UnreachableError.
        """


class LiveLedger(LedgerStore, Protocol):
    """The ledger itself, as opposed to a store derived from it."""

    def missing(self) -> str | None:
        """Return what has not been read yet, as a sentence, or None."""

    def stored(self) -> Iterable[GpuNode]:
        """Return the nodes as they are stored, without pending commits, which may fail."""

    def premature(self, namespace: str, manifest: Mapping[str, Any], request: Request) -> Refusal | None:
        """Return why nothing is reserved for a pod before it is stored, or None."""

    def uncounted(self, namespace: str, manifest: Mapping[str, Any], request: Request) -> str | None:
        """Return why the ResourceQuotas of a namespace cannot count the request, or None."""

    async def refresh(self, node: str) -> None:
        """Read a node from the API server, so that its view has everything stored so far. Raises UnreachableError."""
