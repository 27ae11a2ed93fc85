"""A copy of the Node's metadata and of the ConfigMap. The node's label selects an entry of the ConfigMap.

Both are watched, not mounted: the kubelet updates a mounted ConfigMap up to two minutes late, and shows neither when
nor whether the ConfigMap exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from gpushare import contract
from gpushare.cluster import api_client, informer
from gpushare.config import config_choice


class Configuration:
    """A live copy of the Node's metadata and of the ConfigMap's entries. changed: called when either may change."""

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
        """Watch both until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.node.run())
            group.create_task(self.config_map.run())

    async def synced(self) -> None:
        """Wait until both are known."""
        await self.node.synced.wait()
        await self.config_map.synced.wait()

    @property
    def informers(self) -> tuple[informer.Informer, ...]:
        return self.node, self.config_map

    @property
    def is_known(self) -> bool:
        return self.node.synced.is_set() and self.config_map.synced.is_set()

    def metadata(self) -> Mapping[str, Any] | None:
        """Return the Node's metadata, with labels and annotations; None while there is no such Node."""
        return next((item["metadata"] for item in self.node.objects.values()), None)

    def runtime(self) -> str:
        """Return the node's container runtime with its version, as `containerd://1.7.24`; "" while unknown."""
        node = next(iter(self.node.objects.values()), {})
        return str(node.get("runtime", ""))

    def memory_capacity(self) -> str | None:
        """Return the Node's capacity of `gpushare.io/gpu-memory`: "" if it has none, None while there is no Node."""
        return next((item["memory"] for item in self.node.objects.values()), None)

    @property
    def label(self) -> str | None:
        """The configuration name in the node's label; None without a label."""
        return config_choice.label_of((self.metadata() or {}).get("labels") or {})

    @property
    def entries(self) -> dict[str, str]:
        """The entries of the ConfigMap; empty if it does not exist."""
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
