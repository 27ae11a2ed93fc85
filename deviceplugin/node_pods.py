"""The pods of this node, reduced to what the agent needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from deviceplugin.state import advertisement
from gpushare import contract, pod
from gpushare.cluster import api_client, informer
from gpushare.pod import PodJson

PATH: Final = "/api/v1/pods"
_METADATA: Final = ("namespace", "name", "uid", "resourceVersion")
_ANNOTATIONS: Final = (contract.ALLOCATION, contract.GROUP)


class NodePods:
    """A live copy of the pods. The results are incomplete until the informer has synced."""

    def __init__(self, api: api_client.ApiClient, node_name: str) -> None:
        self._api = api
        self._selector = f"spec.nodeName={node_name}"
        self.informer = informer.Informer(api, PATH, field_selector=self._selector, transform=trimmed)

    def all(self) -> Iterable[PodJson]:
        return self.informer.objects.values()

    def known(self) -> list[PodJson] | None:
        """Return all pods; None while they are unknown."""
        return list(self.all()) if self.informer.synced.is_set() else None

    def uids(self) -> frozenset[str] | None:
        """Return the UIDs of all pods; None while they are unknown."""
        known = self.known()
        return None if known is None else frozenset(map(pod.uid, known))

    def running_uids(self) -> frozenset[str]:
        """Return the UIDs of the pods that have not ended."""
        return frozenset(pod.uid(manifest) for manifest in self.all() if not pod.is_terminal(manifest))

    async def fetch(self) -> Iterable[PodJson]:
        """Read the pods with a share from the API server. Raises ClusterError."""
        listing = await self._api.list(PATH, {"fieldSelector": self._selector}, keep=_with_share)
        return [item for item in listing.items if item is not None]


def _with_share(item: dict[str, Any]) -> dict[str, Any] | None:
    return trimmed(item) if contract.ALLOCATION in pod.annotations_of(item) else None


def trimmed(item: dict[str, Any]) -> dict[str, Any]:
    """Reduce a pod to its identity, group, share, container resources, phase and container statuses."""
    metadata = item["metadata"]
    annotations = pod.annotations_of(item)
    status = item.get("status") or {}
    return {
        "metadata": {
            **{key: metadata[key] for key in _METADATA if key in metadata},
            "annotations": {key: annotations[key] for key in _ANNOTATIONS if key in annotations},
        },
        "spec": {
            **(advertisement.trimmed_resources(item) if contract.ALLOCATION in annotations else {}),
            **({"runtimeClassName": name} if (name := pod.runtime_class(item)) else {}),
        },
        "status": {key: value for key, value in status.items() if key.endswith("ontainerStatuses") or key == "phase"},
    }
