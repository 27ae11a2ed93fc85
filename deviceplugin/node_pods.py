"""The pods of this node: where they are asked for, and as much of them as the agent needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from deviceplugin import allocatable
from gpushare import contract, pod
from gpushare.cluster import api_client, informer

PATH: Final = "/api/v1/pods"
_KEPT: Final = ("namespace", "name", "uid", "resourceVersion")  # of the metadata


def watched(api: api_client.ApiClient, node_name: str) -> informer.Informer:
    """A live copy of them."""
    return informer.Informer(api, PATH, field_selector=_on(node_name), transform=trimmed)


async def ask(api: api_client.ApiClient, node_name: str) -> Iterable[dict[str, Any]]:
    """Those with a share, as the API server has them now. Raises ClusterError."""
    listing = await api.list(PATH, {"fieldSelector": _on(node_name)}, keep=_with_share)
    return [item for item in listing.items if item is not None]


def _with_share(item: dict[str, Any]) -> dict[str, Any] | None:
    return trimmed(item) if contract.ALLOCATION in pod.annotations_of(item) else None


def _on(node_name: str) -> str:
    return f"spec.nodeName={node_name}"


def trimmed(item: dict[str, Any]) -> dict[str, Any]:
    """Who it is, what it was given and counts for, and whether it is over."""
    found = item["metadata"]
    annotations = pod.annotations_of(item)
    status = item.get("status") or {}
    return {
        "metadata": {
            **{key: found[key] for key in _KEPT if key in found},
            "annotations": {key: annotations[key] for key in (contract.ALLOCATION,) if key in annotations},
        },
        "spec": {
            **(allocatable.trimmed(item) if contract.ALLOCATION in annotations else {}),
            **({"runtimeClassName": name} if (name := pod.runtime_class(item)) else {}),
        },
        "status": {key: value for key, value in status.items() if key.endswith("ontainerStatuses") or key == "phase"},
    }
