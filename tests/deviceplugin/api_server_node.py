"""A node of a real API server, for an agent with the permissions of its manifests."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpushare import codec, contract
from gpushare.gpunode import GpuNode
from lab import access, lab_errors
from lab import kubeconfig as files
from tests.config import manifests
from tests.webhook import conftest

BASE = Path(__file__).parents[2] / "config" / "base"


class Cluster:
    """One node of a real API server, as an administrator sees it."""

    def __init__(self, administrator: access.Access, node: str) -> None:
        self.administrator = administrator
        self.node = node

    async def patch(self, path: str, patch: Mapping[str, object] | Sequence[object]) -> None:
        await asyncio.to_thread(self.administrator.patch, path, patch)

    async def delete(self, path: str) -> None:
        await asyncio.to_thread(self.administrator.delete, path)

    @property
    def gpunode_path(self) -> str:
        return f"{contract.GPUNODE_PATH}/{self.node}"

    async def gpunode(self) -> dict[str, Any]:
        return await asyncio.to_thread(self.administrator.read, f"{contract.GPUNODE_PATH}/{self.node}")

    async def place(self, change: Callable[[GpuNode], GpuNode]) -> GpuNode:
        """Write the GPUNode's spec as the placer does, with retries while the agent writes too; return the stored
        GPUNode.
        """
        for _ in range(20):
            changed = change(codec.read(await self.gpunode()))
            version = {"op": "replace", "path": "/metadata/resourceVersion", "value": changed.version}
            spec = {"op": "add", "path": "/spec", "value": codec.to_spec(changed)}
            try:
                await self.patch(self.gpunode_path, [version, spec])
            except lab_errors.LabError as error:
                if "the object has been modified" not in str(error):
                    raise
            else:
                return changed
        raise AssertionError("the agent wrote the GPUNode between each reading and writing")

    async def has_gpus(self, count: int) -> bool:
        """Return whether there is a GPUNode with this number of GPUs."""
        gpunode = await asyncio.to_thread(self.administrator.find, f"{contract.GPUNODE_PATH}/{self.node}")
        return gpunode is not None and len(codec.read(gpunode).gpus) == count

    async def ready(self) -> str:
        conditions = (await self.gpunode())["status"]["conditions"]
        return next(str(condition["message"]) for condition in conditions if condition["type"] == "Ready")

    async def limits(self) -> str:
        """Return the reason of LimitsInForce; empty without that condition."""
        gpunode = await asyncio.to_thread(self.administrator.find, f"{contract.GPUNODE_PATH}/{self.node}")
        limits = codec.read(gpunode).condition(contract.CONDITION_LIMITS_IN_FORCE) if gpunode is not None else None
        return limits.reason if limits is not None else ""

    async def is_audited(self) -> bool:
        """Return whether the GPUNode shows a complete audit, which the first status may lack."""
        return await self.limits() == "Audited"

    async def memory(self) -> str:
        node = await asyncio.to_thread(self.administrator.read, f"/api/v1/nodes/{self.node}")
        return str(node["status"].get("capacity", {}).get(contract.RESOURCE_MEMORY, ""))

    async def until(self, condition: Any) -> None:
        """Wait until an awaitable condition is true."""
        async with asyncio.timeout(40):
            while not await condition():  # noqa: ASYNC110 (nothing tells us)
                await asyncio.sleep(0.1)

    def agents_kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig with a token that is bound to the node, as the agent's pod has."""
        uid = self.administrator.read(f"/api/v1/nodes/{self.node}")["metadata"]["uid"]
        bound = {"kind": "Node", "apiVersion": "v1", "name": self.node, "uid": uid}
        accounts = f"/api/v1/namespaces/{contract.SYSTEM_NAMESPACE}/serviceaccounts"
        request = {"spec": {"boundObjectRef": bound}}
        answer = self.administrator.create(f"{accounts}/{contract.AGENT_SERVICE_ACCOUNT}/token", request)
        token = answer["status"]["token"]
        server, ca_file = self.administrator.server, self.administrator.ca_file
        files.write(path, files.with_token(server, ca_file, token, contract.SYSTEM_NAMESPACE))
        return path


@pytest.fixture(scope="module")
def installed(api_server: access.Access) -> Iterator[access.Access]:
    with manifests.together(*(BASE / part for part in ("crd", "namespace", "rbac", "policy"))) as directory:
        api_server.kubectl("apply", "--server-side", "--force-conflicts", "-k", directory)
    api_server.wait_until_established("gpunodes.gpushare.io")
    yield api_server
    conftest.remove(api_server, "policy")


@pytest.fixture
def cluster(installed: access.Access) -> Iterator[Cluster]:
    name = f"agent-test-{secrets.token_hex(3)}"
    installed.create("/api/v1/nodes", {"metadata": {"name": name}})
    yield Cluster(installed, name)
    for path in (contract.GPUNODE_PATH, "/api/v1/nodes"):
        installed.delete(f"{path}/{name}")
