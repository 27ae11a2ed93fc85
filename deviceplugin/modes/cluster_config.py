"""What the cluster wants of this node: its label, and the ConfigMap that the label picks an entry of.

Both are watched by the API, and not mounted: the kubelet brings a changed ConfigMap into a pod up to two minutes late,
and says neither when nor that there is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from gpushare import contract
from gpushare.cluster import api_client, informer
from gpushare.config import config_choice


class Configuration:
    """A live copy of the node's metadata and of the ConfigMap's entries.

    changed: called whenever one of the two may have changed.
    """

    def __init__(
        self,
        api: api_client.ApiClient,
        *,
        node_name: str,
        config_map: str,
        changed: Callable[[], None],
    ) -> None:
        namespace, _, name = config_map.partition("/")
        self.node = informer.Informer(
            api, "/api/v1/nodes", field_selector=f"metadata.name={node_name}", transform=_trimmed
        )
        self.config_map = informer.Informer(
            api, f"/api/v1/namespaces/{namespace}/configmaps", field_selector=f"metadata.name={name}"
        )
        for copy in self.informers:
            copy.subscribe(lambda _: changed())

    async def run(self) -> None:
        """Keep both true until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.node.run())
            group.create_task(self.config_map.run())

    async def synced(self) -> None:
        """Return once both are known."""
        await self.node.synced.wait()
        await self.config_map.synced.wait()

    @property
    def informers(self) -> tuple[informer.Informer, ...]:
        """What keeps the two true."""
        return self.node, self.config_map

    @property
    def is_known(self) -> bool:
        """Whether both were read once."""
        return self.node.synced.is_set() and self.config_map.synced.is_set()

    def metadata(self) -> Mapping[str, Any] | None:
        """The node's labels and annotations; None while there is no such node."""
        return next((item["metadata"] for item in self.node.objects.values()), None)

    def runtime(self) -> str:
        """The node's container runtime and its version, `containerd://1.7.24`; empty while that is unknown."""
        node = next(iter(self.node.objects.values()), {})
        return str(node.get("runtime", ""))

    def memory_capacity(self) -> str | None:
        """The node's capacity of `gpushare.io/gpu-memory`, empty where it has none; None while no node is known."""
        return next((item["memory"] for item in self.node.objects.values()), None)

    @property
    def label(self) -> str | None:
        """The name of the configuration that the node asks for; None if it asks for none."""
        return config_choice.label_of((self.metadata() or {}).get("labels") or {})

    @property
    def entries(self) -> dict[str, str]:
        """The entries of the ConfigMap, none if there is no such ConfigMap."""
        config_map = next(iter(self.config_map.objects.values()), None)
        return {str(key): str(text) for key, text in ((config_map or {}).get("data") or {}).items()}


def _trimmed(item: dict[str, Any]) -> dict[str, Any]:
    kept = ("name", "uid", "resourceVersion", "labels", "annotations")
    status = item.get("status") or {}
    return {
        "metadata": {key: item["metadata"][key] for key in kept if key in item["metadata"]},
        "runtime": (status.get("nodeInfo") or {}).get("containerRuntimeVersion") or "",
        "memory": (status.get("capacity") or {}).get(contract.RESOURCE_MEMORY) or "",
    }
