"""Share ranges: the defaults and bounds that Namespaces set, as this process knows them.

A pod may be created right after its Namespace, before the watch shows it. So a Namespace that the copy lacks is read
from the API server, and a bound never depends on which of the two the watch reports first. A changed annotation counts
as soon as the watch shows it; `ApiStore.silence` says when a copy has become too old to be used.
"""

from __future__ import annotations

from typing import Any, Final

from gpushare import share_range
from gpushare.cluster import api_client, api_errors, informer
from gpushare.cluster import object_store as objects
from gpushare.share_range import ShareRange
from webhook.store import ledger_store

NAMESPACES_PATH: Final = "/api/v1/namespaces"
_METADATA_KEYS: Final = ("name", "uid", "resourceVersion")


class ShareRanges:
    """The ranges of all namespaces. `run` keeps them current."""

    def __init__(self, api: api_client.ApiClient) -> None:
        self._api = api
        self.informer = informer.Informer(api, NAMESPACES_PATH, transform=trim_namespace)
        self.run = self.informer.run

    async def of(self, namespace: str) -> ShareRange:
        """Return the range of a namespace; an empty one if it does not exist. Raises UnreachableError."""
        known = self.informer.objects.get(objects.Key("", namespace))
        if known is not None:
            return _range(known)
        try:
            # A list, because it needs no further right than the watch.
            query = {"fieldSelector": f"metadata.name={namespace}"}
            listed = await self._api.list(NAMESPACES_PATH, query, keep=trim_namespace)
        except api_errors.ClusterError as error:
            raise ledger_store.UnreachableError(str(error)) from error
        there = (item for item in listed.items if item["metadata"]["name"] == namespace)
        return next(map(_range, there), ShareRange(namespace))


def trim_namespace(item: dict[str, Any]) -> dict[str, Any]:
    """Keep the range of a Namespace, and what identifies it."""
    metadata = item["metadata"]
    return {
        "metadata": {key: metadata[key] for key in _METADATA_KEYS if key in metadata},
        "range": share_range.of_namespace(item),
    }


def _range(item: dict[str, Any]) -> ShareRange:
    known: ShareRange = item["range"]
    return known
