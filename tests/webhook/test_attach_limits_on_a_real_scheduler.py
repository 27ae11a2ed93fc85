"""How many volumes a node can attach, on the real scheduler: it binds the pods that we pin, and pods that we refuse
wait with its words.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpushare import contract
from tests import builders
from tests.webhook.conftest import Cluster
from tests.webhook.replica import until
from tests.webhook.test_stuck_on_a_real_scheduler import ALLOCATABLE, add_node, bound

pytestmark = pytest.mark.apiserver

DRIVER = "disk.example.com"
CLAIM = "PersistentVolumeClaim"
PATHS = {
    "CSINode": "/apis/storage.k8s.io/v1/csinodes",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "StorageClass": "/apis/storage.k8s.io/v1/storageclasses",
}
EXCEEDS = f"would exceed max volume count: 1 of 1 volumes of {DRIVER} are in use, and the pod adds 1"


class Storage:
    """Storage objects without a driver, made by hand."""

    def __init__(self, cluster: Cluster) -> None:
        self._api = cluster.administrator
        self._namespace = cluster.namespace
        self._claims = f"/api/v1/namespaces/{cluster.namespace}/persistentvolumeclaims"
        self._global: list[str] = []

    def create(self, api_version: str, kind: str, name: str, **fields: Any) -> None:
        metadata: dict[str, Any] = {"name": name, **fields.pop("metadata", {})}
        path = self._claims if kind == CLAIM else PATHS[kind]
        self._api.create(path, {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields})
        if kind != CLAIM:
            self._global.append(f"{path}/{name}")

    def limit(self, node: str, most: int) -> None:
        """Write what the driver's registrar would write."""
        driver = {"name": DRIVER, "nodeID": node, "allocatable": {"count": most}}
        self.create("storage.k8s.io/v1", "CSINode", node, spec={"drivers": [driver]})

    def limit_again(self, node: str, most: int) -> None:
        self._api.delete(f"{PATHS['CSINode']}/{node}")
        self.limit(node, most)

    def claim(self, name: str) -> None:
        """Create a claim that is bound to its own volume."""
        size, modes = {"storage": "1Gi"}, ["ReadWriteMany"]
        volume = f"{self._namespace}-{name}"
        spec = {
            "capacity": size,
            "accessModes": modes,
            "csi": {"driver": DRIVER, "volumeHandle": name},
            "claimRef": {"namespace": self._namespace, "name": name},
        }
        self.create("v1", "PersistentVolume", volume, spec=spec)
        metadata = {"namespace": self._namespace, "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
        spec = {
            "accessModes": modes,
            "resources": {"requests": size},
            "volumeName": volume,
            "storageClassName": "",
        }
        self.create("v1", CLAIM, name, metadata=metadata, spec=spec)
        self._api.patch(f"{self._claims}/{name}/status", {"status": {"phase": "Bound"}})

    def end(self) -> None:
        claims = [f"{self._claims}/{claim['metadata']['name']}" for claim in self._api.read(self._claims)["items"]]
        for path in (*claims, *self._global):
            self._api.delete(path)
            if self._api.find(path) is not None:  # no controller here removes the finalizers of volumes and claims
                self._api.patch(path, {"metadata": {"finalizers": None}})


@pytest.fixture
def storage(scheduled: Cluster) -> Iterator[Storage]:
    made = Storage(scheduled)
    yield made
    made.end()


def mounting(name: str, *claims: str, uuid: str | None = None, **more: Any) -> dict[str, Any]:
    made = builders.pod(name, request="0.1", **({"uuid": uuid} if uuid else {}))
    made["spec"]["volumes"] = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
    made["spec"]["volumes"] += [{"name": key, **volume} for key, volume in more.items()]
    return made


def reason(cluster: Cluster, name: str) -> str:
    return str(cluster.pod(name)["metadata"]["annotations"].get(contract.REASON, ""))


def place(made: dict[str, Any]) -> str:
    return str(made["metadata"]["annotations"].get(contract.NODE, ""))


def test_pod_whose_volume_cannot_be_attached_goes_elsewhere_or_waits(scheduled: Cluster, storage: Storage) -> None:
    scheduled.describe("node-a", ALLOCATABLE)
    add_node(scheduled, "node-b")
    storage.limit("node-a", 1)
    storage.limit("node-b", 1)
    for name in ("one", "two", "three"):
        storage.claim(name)
    scheduled.start()

    first = place(scheduled.create_placed(mounting("first", "one")))
    until(lambda: bound(scheduled, "first") == first, scheduled.explain)
    inline = {"csi": {"driver": DRIVER}}
    # One volume is attached there already, and the other needs no attachment.
    alike = scheduled.create_placed(mounting("alike", "one", inline=inline, uuid=f"GPU-{first}-0"))
    assert place(alike) == first
    until(lambda: bound(scheduled, "alike") == first, scheduled.explain)
    second = place(scheduled.create_placed(mounting("second", "two")))
    assert {first, second} == {"node-a", "node-b"}
    until(lambda: bound(scheduled, "second") == second, scheduled.explain)

    waiting = scheduled.create(mounting("third", "three"))
    assert not place(waiting)
    assert EXCEEDS in waiting["metadata"]["annotations"][contract.REASON]
    assert [scheduling_gate["name"] for scheduling_gate in waiting["spec"]["schedulingGates"]] == [
        contract.SCHEDULING_GATE
    ]
    without = scheduled.create_placed(mounting("without"))  # who mounts nothing is not concerned
    until(lambda: bound(scheduled, "without") == place(without), scheduled.explain)
    # The scheduler says the same of a pod that the webhook does not review.
    plain = mounting("plain", "three")
    plain["metadata"]["annotations"] = {}
    scheduled.create(plain)
    says = "node(s) exceed max volume count"
    until(lambda: says in json.dumps(scheduled.pod("plain").get("status", {})), scheduled.explain)
    scheduled.delete("plain")

    scheduled.delete("second")
    until(lambda: bound(scheduled, "third") == second, scheduled.explain)
    assert not reason(scheduled, "third")


def test_unbound_claims_count_and_missing_claims_are_waited_for(scheduled: Cluster, storage: Storage) -> None:
    scheduled.describe("node-a", ALLOCATABLE)
    storage.limit("node-a", 1)
    name = f"wait-{scheduled.namespace}"
    storage.create(
        "storage.k8s.io/v1", "StorageClass", name, provisioner=DRIVER, volumeBindingMode="WaitForFirstConsumer"
    )
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": name,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    made_for_it = {"ephemeral": {"volumeClaimTemplate": {"spec": spec}}}
    scheduled.start()
    assert place(scheduled.create_placed(mounting("first", scratch=made_for_it))) == "node-a"
    second = scheduled.create(mounting("second", scratch=made_for_it))
    assert EXCEEDS in second["metadata"]["annotations"][contract.REASON]
    scheduled.delete("first")
    until(lambda: place(scheduled.pod("second")) == "node-a", scheduled.explain)
    scheduled.delete("second")

    missing = scheduled.create(mounting("third", "later"))
    assert "cannot mount the pod's claim later, which does not exist" in json.dumps(missing["metadata"]["annotations"])
    storage.create("v1", CLAIM, "later", metadata={"namespace": scheduled.namespace}, spec=spec)
    until(lambda: place(scheduled.pod("third")) == "node-a", scheduled.explain)
    fourth = scheduled.create(mounting("fourth", scratch=made_for_it))
    assert EXCEEDS in fourth["metadata"]["annotations"][contract.REASON]
    storage.limit_again("node-a", 2)
    until(lambda: place(scheduled.pod("fourth")) == "node-a", scheduled.explain)
