"""A running pod grows and shrinks through its annotations on a real cluster, and another pod uses the freed part."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpushare import codec, contract
from gpushare.allocation import Allocation, GivenShare
from gpushare.gpunode import GpuNode
from lab import access, image, lab_layout
from tests.deviceplugin import simulated

pytestmark = pytest.mark.lab

GIB = 1 << 30


class User:
    """A user with a namespace on the lab's node."""

    def __init__(self, lab: access.Access, where: lab_layout.Layout, namespace: str) -> None:
        self.lab, self.namespace = lab, namespace
        self.node_name = where.nodes[0].name
        self.uuids = simulated.uuids(where.gpus(where.nodes[0]))

    def run(self, name: str, **asked: str) -> None:
        """Create a pod that only waits, with these annotations."""
        container = {"name": "main", "image": image.SAMPLE, "command": ["sh", "-c", "sleep 3600"]}
        spec = {"containers": [container], "terminationGracePeriodSeconds": 0, "restartPolicy": "Never"}
        annotations = {f"{contract.PREFIX}{key}": value for key, value in asked.items()}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations}}
        self.lab.create(f"/api/v1/namespaces/{self.namespace}/pods", {**manifest, "spec": spec})

    def asks(self, name: str, **asked: str) -> None:
        """Change a pod's annotations."""
        annotations = {f"{contract.PREFIX}{key}": value for key, value in asked.items()}
        self.lab.patch(self._path(name), {"metadata": {"annotations": annotations}})

    def _path(self, name: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{name}"

    def pod(self, name: str) -> dict[str, Any]:
        return self.lab.read(self._path(name))

    def phase(self, name: str) -> str:
        return str(self.pod(name)["status"].get("phase"))

    def reason(self, name: str) -> str:
        return str(self.pod(name)["metadata"]["annotations"].get(contract.REASON, ""))

    def events(self, reason: str) -> list[str]:
        """Return the notes of the Events with this reason."""
        listed = self.lab.read(f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")["items"]
        return [str(event["note"]) for event in listed if event["reason"] == reason]

    def inside(self, name: str, *command: str) -> str:
        """Run a program in a pod and return its output, whether or not it fails."""
        return self.lab.execute(self.namespace, name, "sh", "-c", f"{' '.join(command)} || true")

    def end(self, name: str) -> None:
        self.lab.delete(self._path(name))

    def gpunode(self) -> GpuNode:
        return codec.read(self.lab.read(f"{contract.GPUNODE_PATH}/{self.node_name}"))

    def allocation(self, name: str) -> Allocation:
        (entry,) = [allocation for allocation in self.gpunode().allocations if allocation.pod.name == name]
        return entry

    def share(self, name: str) -> GivenShare:
        return self.allocation(name).shares[0]

    def allocatable(self, resource: str) -> int:
        return int(self.lab.read(f"/api/v1/nodes/{self.node_name}")["status"]["allocatable"][resource])


# For a minute and a half after a kubelet's start, in an earlier test, allocatable is larger than the capacity.
def eventually(condition: Callable[[], bool], seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.3)


@pytest.fixture
def user(installed: lab_layout.Layout, lab: access.Access) -> Iterator[User]:
    with lab.namespace("resize") as namespace:
        yield User(lab, installed, namespace)


def test_a_running_pod_grows_and_shrinks_and_another_uses_the_freed_part(user: User) -> None:
    user.run("resized", request="0.5", memory="10Gi")
    eventually(lambda: user.phase("resized") == "Running")
    gpu = user.share("resized").gpu_uuids[0]
    user.inside("resized", "(gpushare-probe --allocate 8GiB --hold 3600 > /dev/null 2>&1 & echo $! > /tmp/pid)")
    eventually(lambda: "refused" in user.inside("resized", "gpushare-probe --allocate 3GiB"))

    user.asks("resized", request="0.6", memory="30Gi")
    eventually(lambda: user.share("resized").memory_bytes == 30 * GIB)
    assert user.share("resized").request_percent == 60
    eventually(lambda: "allocated" in user.inside("resized", "gpushare-probe --allocate 20GiB"))

    user.asks("resized", request="0.2", memory="4Gi")
    eventually(lambda: "4Gi" in user.reason("resized") and "8" in user.reason("resized"))
    assert any("4Gi" in note for note in user.events(contract.EVENT_RESIZE_WAITS))
    share = user.share("resized")
    assert (share.memory_bytes, share.shrink_to_bytes, share.request_percent) == (30 * GIB, 4 * GIB, 20)
    (resize,) = user.gpunode().resizes
    assert resize.memory_bytes == 30 * GIB
    assert resize.used_bytes >= 8 * GIB
    assert "allocated" in user.inside("resized", "gpushare-probe --allocate 20GiB")  # a rejected change has no effect

    user.inside("resized", "kill $(cat /tmp/pid)")
    eventually(lambda: user.share("resized").memory_bytes == 4 * GIB)
    assert user.share("resized").shrink_to_bytes is None
    eventually(lambda: user.gpunode().resizes == () and not user.reason("resized"))
    assert "refused" in user.inside("resized", "gpushare-probe --allocate 4097MiB")
    assert user.phase("resized") == "Running"

    # The pod still counts for half a GPU and 10Gi; the node offers the freed part a second time.
    eventually(lambda: user.allocatable(contract.RESOURCE_PERCENT) == 430)
    eventually(lambda: user.allocatable(contract.RESOURCE_MEMORY) == 166 * GIB)
    for number, other in enumerate(uuid for uuid in user.uuids if uuid != gpu):
        user.run(f"whole-{number}", request="1", memory="40Gi", uuid=other)
    user.run("room", request="0.8", memory="36Gi", uuid=gpu)
    for name in ("whole-0", "whole-1", "whole-2", "room"):
        eventually(lambda name=name: user.phase(name) == "Running")  # type: ignore[misc]
    assert user.share("room").gpu_uuids == (gpu,)

    # `test_lab_kubelet.py` waits until the node offers no more than its GPUs again: half a minute after Allocate.
    user.end("resized")
    eventually(lambda: all(entry.pod.name != "resized" for entry in user.gpunode().allocations))
    assert user.phase("room") == "Running"
