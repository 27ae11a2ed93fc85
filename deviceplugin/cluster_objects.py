"""Live copies of the node's pods, of its Node and of the ConfigMap, reduced to what the agent needs.

The ConfigMap is watched, not mounted: the kubelet updates a mounted ConfigMap up to two minutes late, and shows neither
when nor whether it exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from deviceplugin.state import advertisement
from gpushare import contract, pod
from gpushare.cluster import api_client, informer
from gpushare.config import config_choice
from gpushare.pod import PodJson

PODS_PATH: Final = "/api/v1/pods"
_POD_METADATA: Final = ("namespace", "name", "uid", "resourceVersion")
_POD_ANNOTATIONS: Final = (contract.ALLOCATION, contract.GROUP, contract.GPU_UUIDS, contract.MIG_DEVICE)


class NodePods:
    """A live copy of the pods. The results are incomplete until the informer has synced."""

    def __init__(self, api: api_client.ApiClient, node_name: str) -> None:
        self._api = api
        self._selector = f"spec.nodeName={node_name}"
        self.informer = informer.Informer(api, PODS_PATH, field_selector=self._selector, transform=trimmed_pod)

    def all(self) -> Iterable[PodJson]:
        return self.informer.objects.values()

    def known(self) -> list[PodJson] | None:
        return list(self.all()) if self.informer.synced.is_set() else None

    def uids(self) -> frozenset[str] | None:
        return frozenset(map(pod.uid, self.all())) if self.informer.synced.is_set() else None

    def running_uids(self) -> frozenset[str]:
        return frozenset(pod.uid(manifest) for manifest in self.all() if not pod.is_terminal(manifest))

    async def fetch(self) -> Iterable[PodJson]:
        """Read the pods with a share from the API server. Raises ClusterError."""

        def with_share(item: dict[str, Any]) -> dict[str, Any] | None:
            return trimmed_pod(item) if contract.ALLOCATION in pod.annotations_of(item) else None

        listing = await self._api.list(PODS_PATH, {"fieldSelector": self._selector}, keep=with_share)
        return [item for item in listing.items if item is not None]


def trimmed_pod(item: dict[str, Any]) -> dict[str, Any]:
    """Reduce a pod to its identity, group, share, container resources, phase and container statuses."""
    metadata = item["metadata"]
    annotations = pod.annotations_of(item)
    status = item.get("status") or {}
    return {
        "metadata": {
            **{key: metadata[key] for key in _POD_METADATA if key in metadata},
            "annotations": {key: annotations[key] for key in _POD_ANNOTATIONS if key in annotations},
        },
        "spec": {
            **(advertisement.trimmed_resources(item) if contract.ALLOCATION in annotations else {}),
            **({"runtimeClassName": name} if (name := pod.runtime_class(item)) else {}),
        },
        "status": {key: value for key, value in status.items() if key.endswith("ontainerStatuses") or key == "phase"},
    }


class Configuration:
    """A live copy of the Node's metadata and of the ConfigMap's entries. changed: called when either may change."""

    def __init__(
        self, api: api_client.ApiClient, *, node_name: str, config_map: str, changed: Callable[[], None]
    ) -> None:
        namespace, _, name = config_map.partition("/")
        self.node = informer.Informer(
            api, "/api/v1/nodes", field_selector=f"metadata.name={node_name}", transform=_trimmed_node
        )
        self.config_map = informer.Informer(
            api, f"/api/v1/namespaces/{namespace}/configmaps", field_selector=f"metadata.name={name}"
        )
        self.informers = self.node, self.config_map
        for copy in self.informers:
            copy.subscribe(lambda _: changed())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.node.run())
            group.create_task(self.config_map.run())

    async def synced(self) -> None:
        await self.node.synced.wait()
        await self.config_map.synced.wait()

    @property
    def is_known(self) -> bool:
        return self.node.synced.is_set() and self.config_map.synced.is_set()

    def metadata(self) -> Mapping[str, Any] | None:
        """Return the Node's metadata, with labels and annotations; None while there is no such Node."""
        return next((item["metadata"] for item in self.node.objects.values()), None)

    def runtime(self) -> str:
        """Return the node's container runtime with its version, as `containerd://1.7.24`; "" while unknown."""
        return next((str(item["runtime"]) for item in self.node.objects.values()), "")

    def memory_capacity(self) -> str | None:
        """Return the Node's capacity of `gpushare.io/gpu-memory`: "" if it has none, None while there is no Node."""
        return next((item["memory"] for item in self.node.objects.values()), None)

    def taints(self) -> Sequence[Mapping[str, Any]] | None:
        """Return the Node's taints; None while there is no Node."""
        return next((item["taints"] for item in self.node.objects.values()), None)

    def offered(self) -> frozenset[str]:
        """Return the resources that the Node offers to the scheduler."""
        return next((item["offered"] for item in self.node.objects.values()), frozenset())

    @property
    def label(self) -> str | None:
        return config_choice.label_of((self.metadata() or {}).get("labels") or {})

    @property
    def own_label(self) -> str | None:
        """The name in gpushare's own label, regardless of NVIDIA's."""
        return ((self.metadata() or {}).get("labels") or {}).get(contract.NODE_CONFIG_LABEL)

    @property
    def is_borrowing(self) -> bool:
        """Whether another device plugin gives the Node's GPUs, and gpushare borrows them."""
        return contract.BORROW_LABEL in ((self.metadata() or {}).get("labels") or {})

    @property
    def entries(self) -> dict[str, str]:
        config_map = next(iter(self.config_map.objects.values()), {})
        return {str(key): str(text) for key, text in (config_map.get("data") or {}).items()}


def _trimmed_node(item: dict[str, Any]) -> dict[str, Any]:
    kept = ("name", "uid", "resourceVersion", "labels", "annotations")
    status = item.get("status") or {}
    return {
        "metadata": {key: item["metadata"][key] for key in kept if key in item["metadata"]},
        "runtime": (status.get("nodeInfo") or {}).get("containerRuntimeVersion") or "",
        "taints": (item.get("spec") or {}).get("taints") or [],
        "memory": (status.get("capacity") or {}).get(contract.RESOURCE_MEMORY) or "",
        "offered": frozenset(status.get("allocatable") or ()),
    }
