"""The demand controller on a ledger in memory: what it asks for, and that useless nodes are not asked for again."""

from __future__ import annotations

import collections
import dataclasses
import datetime
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gpushare import codec, contract
from gpushare import request as requests
from gpushare.cluster import api_client, api_errors
from gpushare.gpunode import GpuNode
from gpushare.nodefilters import NodeSpec, PodInfo, PodKey, share_resources
from gpushare.refusal import Cause, Refusal
from gpushare.whatif.node_demand import GpuKind
from tests import builders
from tests.webhook.controllers.test_demand_pods import TEMPLATE
from webhook.controllers.demand import demand_controller, demand_kinds, demand_pods
from webhook.controllers.demand.demand_controller import DemandController, DemandSettings
from webhook.pods.stored_pod import Pod
from webhook.store.memory_store import MemoryStore
from webhook.store.reservation import Reservation

NOW = 1_767_225_600.0  # 2026-01-01


class DemandApi:
    """The namespace of demand pods, in memory. collections: objects by path and name."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.collections = {demand_pods.PODS_PATH: self.pods}
        self.template: dict[str, Any] = {**TEMPLATE, "spec": dict(TEMPLATE["spec"])}
        self.clock: Callable[[], float] = lambda: NOW
        self._created = 0

    async def get(self, path: str) -> dict[str, Any]:
        assert path == demand_pods.TEMPLATE_PATH
        return {"template": self.template}

    async def list(
        self, path: str, *, keep: Callable[[api_client.Json], api_client.Kept]
    ) -> api_client.ObjectList[api_client.Kept]:
        if path not in self.collections:
            raise api_errors.NotFound("the server could not find the requested resource")
        return api_client.ObjectList([keep(made) for made in self.collections[path].values()], "1")

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self._created += 1
        name = body["metadata"].get("name", f"demand-{self._created}")
        if name in self.collections[path]:
            raise api_errors.AlreadyExists(f'"{name}" already exists')
        moment = datetime.datetime.fromtimestamp(self.clock(), datetime.UTC).isoformat()
        own = {"name": name, "uid": f"u{self._created}", "creationTimestamp": moment}
        made = {**body, "metadata": {**body["metadata"], **own}}
        self.collections[path][name] = made
        return made

    async def delete(self, path: str, *, uid: str | None = None) -> dict[str, Any]:
        del uid
        collection, name = path.rsplit("/", 1)
        return self.collections[collection].pop(name)


class Cluster:
    """A ledger, pods that wait, and the controller."""

    def __init__(
        self,
        *nodes: GpuNode,
        foreign: tuple[str, ...] = (),
        kinds: tuple[GpuKind, ...] = (),
        max_gpus: int = 16,
        provisioning_class: str = "",
    ) -> None:
        """foreign: nodes without a GPUNode."""
        self.api, self.now, self.stepped = DemandApi(), 0.0, 0.0
        self.api.clock = lambda: NOW + self.now
        self.store = MemoryStore(map(codec.to_document, nodes))
        for name in (*(node.name for node in nodes), *foreign):
            self.describe(name)
        settings = DemandSettings(contract.RESOURCE_PERCENT, max_gpus, kinds, provisioning_class)
        api: Any = self.api
        self.controller = DemandController(
            api,
            self.store,
            Reservation(self.store, policy="pack"),
            settings,
            clock=lambda: self.now,
            wall_clock=lambda: NOW + self.now + self.stepped,
        )

    def describe(self, name: str, *, labels: Mapping[str, str] | None = None, ready: str = "True", **spec: Any) -> None:
        node = builders.node_object(name, labels=labels, ready=ready, spec=spec)
        self.store.chooser.cache.put_node_spec(name, NodeSpec.from_manifest(node))

    def remove(self, name: str) -> None:
        """Remove a node; its GPUNode, which may stay for a while, counts no more."""
        self.store.chooser.cache.put_node_spec(name, None)

    def run(self, name: str, node: str, *, owner: str = "", cpu: str = "1", **fields: Any) -> None:
        made = builders.pod(name, **fields)
        made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
        made["metadata"]["ownerReferences"] = [{"kind": owner, "name": "x", "controller": True}] if owner else []
        self.store.chooser.cache.put(name, PodInfo.from_manifest(made, node))

    async def reasons(self, *waiting: dict[str, Any]) -> list[str]:
        """Return the end of each pod's reason after a round."""
        pods = [Pod.from_manifest(made) for made in waiting]
        size = collections.Counter(pod.group for pod in pods)
        together = {pod.group: pod.group_size.least if pod.group_size.is_elastic else size[pod.group] for pod in pods}
        refused = [(pod, Refusal("x", together=together[pod.group] if pod.group else 1)) for pod in pods]
        answered = await self.controller.reconcile(refused)
        return [refusal.reason.removeprefix("x; ") for _, refusal in answered]

    def asked(self, resource: str) -> list[int]:
        """Return the amounts that the demand pods request."""
        return [dict(PodKey.from_manifest(made).amounts).get(resource, 0) for made in self.api.pods.values()]

    def selected(self) -> list[dict[str, str]]:
        return [made["spec"].get("nodeSelector", {}) for made in self.api.pods.values()]


def gated(name: str, *, cpu: str = "1", created: float = 0.0, spec: dict[str, Any] | None = None, **asks: Any) -> Any:
    """Build a pod that waits, created so many seconds after NOW."""
    made = builders.pod(name, uid=name, spec={"schedulingGates": [{"name": contract.SCHEDULING_GATE}]}, **asks)
    shares = share_resources.resources(requests.parse(made).demands[0], "main")
    made["spec"]["containers"][0]["resources"] = {"limits": shares, "requests": {**shares, "cpu": cpu}}
    made["spec"] |= spec or {}
    moment = datetime.datetime.fromtimestamp(NOW + created, datetime.UTC)
    made["metadata"]["creationTimestamp"] = moment.isoformat()
    return made


def full(name: str, *, gpus: int = 1, memory_gib: int = 80) -> GpuNode:
    """Build a node whose GPUs are all in use."""
    node = builders.node(name, gpus=gpus, memory_gib=memory_gib)
    uuids = [gpu.uuid for gpu in node.gpus]
    entry = builders.allocation(f"a-{name}", *uuids, request=100, memory_gib=memory_gib, uid=f"u-{name}")
    return dataclasses.replace(node, allocations=(entry,))


def near_nobody() -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": "nobody"}}, "topologyKey": contract.HOSTNAME_LABEL}
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


async def test_a_demand_leaves_room_for_the_pods_of_daemonsets() -> None:
    cluster = Cluster(full("node-a"))
    cluster.run("proxy", "node-a", owner="DaemonSet", cpu="500m")
    cluster.run("static", "node-a", owner="Node", cpu="250m")
    cluster.run("other", "node-a", cpu="4")
    await cluster.reasons(*(gated(f"p{number}", cpu="2", request="0.25") for number in range(4)))
    # A new node has 7250m for them, so the fourth pod needs another.
    assert sorted(cluster.asked("cpu")) == [2000, 6000]


async def test_nodes_whose_gpus_take_no_shares_are_excluded_after_a_while() -> None:
    cluster = Cluster(builders.node("broken", healthy=False), foreign=("foreign-a", "foreign-b"))
    cluster.describe("foreign-a", labels={"pool": "a"})
    cluster.describe("foreign-b", labels={"pool": "b"})
    waiting = [gated(pool, request="1", spec={"nodeSelector": {"pool": pool}}) for pool in "ab"]
    waiting.append(gated("any", request="1"))

    async def asked() -> list[set[str]]:
        """Return the hostnames that each new demand pod excludes, with the scheduler's binding undone."""
        cluster.api.pods.clear()
        await cluster.reasons(*waiting)
        return sorted(map(excluded, cluster.api.pods.values()), key=sorted)

    assert await asked() == [set(), set(), set()]
    cluster.now += demand_controller.FOREIGN_SECONDS / 2
    assert await asked() == [set(), set(), set()]
    cluster.now += demand_controller.FOREIGN_SECONDS / 2
    everywhere = {"broken", "foreign-a", "foreign-b"}
    assert await asked() == sorted([{"foreign-a"}, {"foreign-b"}, everywhere], key=sorted)


def excluded(made: dict[str, Any]) -> set[str]:
    affinity = made["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", ())
    return {name for term in terms for each in term["matchExpressions"] for name in each["values"]}


async def test_kinds_that_the_administrator_has_named_come_first() -> None:
    l4, a100 = GpuKind.named("L4", 24 * builders.GIB), GpuKind.named("A100", 80 * builders.GIB)
    for kinds, expected in (((l4, a100), "L4"), ((a100, l4), "A100"), ((), "A100")):
        cluster = Cluster(full("node-a"), full("node-b"), full("node-c"), kinds=kinds)
        for name in ("node-a", "node-b"):
            cluster.describe(name, labels={demand_pods.PRODUCT_LABEL: "A100"})
        cluster.describe("node-c", labels={demand_pods.PRODUCT_LABEL: "H100"})
        await cluster.reasons(gated("p", request="0.5"))
        assert cluster.selected() == [{demand_pods.PRODUCT_LABEL: expected}]
    # A pod that selects the product, or a pool that is known to have another, asks for that.
    for selector in ({demand_pods.PRODUCT_LABEL: "A100"}, {"pool": "a"}):
        cluster = Cluster(full("node-a"), kinds=(l4, a100))
        cluster.describe("node-a", labels={demand_pods.PRODUCT_LABEL: "A100", "pool": "a"})
        await cluster.reasons(gated("p", request="0.5", spec={"nodeSelector": selector}))
        assert cluster.selected() == [{demand_pods.PRODUCT_LABEL: "A100", **selector}]


async def test_only_kinds_of_nodes_that_the_template_allows_are_asked_for() -> None:
    cluster = Cluster(full("a", memory_gib=24), full("b"), full("c"))
    for name, product in (("a", "L4"), ("b", "A100"), ("c", "A100")):
        cluster.describe(name, labels={demand_pods.PRODUCT_LABEL: product, "grows": str(name == "a")})
    cluster.api.template["spec"]["nodeSelector"] = {"grows": "True"}
    await cluster.reasons(gated("p", request="0.5"))
    assert cluster.selected() == [{demand_pods.PRODUCT_LABEL: "L4", "grows": "True"}]
    (reason,) = await cluster.reasons(gated("p", request="0.5", spec={"nodeSelector": {"grows": "False"}}))
    assert reason.startswith(
        "asks for no node: its nodeSelector grows=False conflicts with grows=True of the PodTemplate"
    )
    assert cluster.api.pods == {}


@pytest.mark.parametrize("how", ["removed", "cordoned", "not ready"])
async def test_a_node_that_was_too_small_is_not_asked_for_again(how: str) -> None:
    cluster = Cluster(builders.node("new"))
    if how != "removed":
        cluster.describe("new", ready="False" if how == "not ready" else "True", unschedulable=how == "cordoned")
    no_kind = "asks for no node: it fits on no GPU that is known (--demand-products), even if that is empty"
    large = gated("p", memory="200Gi")
    assert await cluster.reasons(large) == [no_kind]
    cluster.remove("new")
    cluster.now += demand_kinds.REMEMBERED_SECONDS - 1
    assert await cluster.reasons(large) == [no_kind]
    cluster.now += 2
    assert "waits for a node: 1 GPU asked for" in (await cluster.reasons(large))[0]


async def test_a_label_that_only_agents_write_is_not_selected_while_all_nodes_are_gone() -> None:
    cluster = Cluster(full("a", memory_gib=24), full("b"))
    for name, product in (("a", "L4"), ("b", "A100")):
        cluster.describe(name, labels={demand_pods.PRODUCT_LABEL: product})
    small = gated("p", request="0.5")
    await cluster.reasons(small)
    assert [demand_pods.PRODUCT_LABEL in selector for selector in cluster.selected()] == [True]
    cluster.remove("b")
    await cluster.reasons(gated("large", memory="60Gi"))
    assert cluster.selected() == [{demand_pods.PRODUCT_LABEL: "A100"}]
    cluster.remove("a")
    await cluster.reasons(small)
    assert cluster.selected() == [{}]


async def test_a_pod_that_a_new_node_did_not_help_asks_for_none_for_an_hour() -> None:
    cluster = Cluster(builders.node("new"))
    lonely, other = gated("p", request="0.5", spec=near_nobody()), gated("q", gpus="8")
    useless = "asks for no node, as another would not help: new is empty and "
    assert (await cluster.reasons(lonely))[0].startswith(useless)
    cluster.remove("new")
    cluster.now += demand_kinds.REMEMBERED_SECONDS - 1
    first, second = await cluster.reasons(lonely, other)
    assert first.startswith(useless)
    assert second.startswith("waits for a node: 8 GPUs asked for")
    cluster.now += 2
    assert "waits for a node" in (await cluster.reasons(lonely))[0]


async def test_reasons_against_a_node_that_runs_other_pods_say_nothing_about_a_new_one() -> None:
    apart = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": contract.HOSTNAME_LABEL}
    rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    wants = gated("p", request="0.5", spec={"affinity": rule})
    wants["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 80}]
    cluster = Cluster(builders.node("old"))
    cluster.run("web", "old", labels={"app": "web"})
    assert await cluster.reasons(wants) == ["waits for a node: 1 GPU asked for"]
    # A DaemonSet has a pod on each new node too.
    cluster = Cluster(builders.node("old"))
    cluster.run("web", "old", owner="DaemonSet", labels={"app": "web"})
    assert "another would not help" in (await cluster.reasons(wants))[0]


async def test_pods_whose_nodes_never_start_do_not_block_newer_ones() -> None:
    cluster = Cluster(full("node-a", gpus=8), max_gpus=8)
    typo = gated("typo", gpus="8", spec={"nodeSelector": {"pool": "typo"}})
    assert await cluster.reasons(typo) == ["waits for a node: 8 GPUs asked for"]
    cluster.now += demand_pods.LATE_SECONDS
    late = "; newer pods come first, as it has waited for over 15 minutes"
    assert await cluster.reasons(typo) == [f"waits for a node: 8 GPUs asked for{late}"]
    bound = "asks for no node: no more than 8 GPUs are asked for (--demand-max-gpus)"
    new = gated("new", gpus="8", created=cluster.now)
    assert await cluster.reasons(typo, new) == [bound + late, "waits for a node: 8 GPUs asked for"]
    sixteen = gated("sixteen", gpus="16", created=cluster.now)
    assert await cluster.reasons(sixteen, new) == [
        f"{bound}; other pods come first, as no known node has as many GPUs",
        "waits for a node: 8 GPUs asked for",
    ]


async def test_pods_that_wait_for_other_reasons_do_not_count_towards_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand_controller, "MAX_PODS", 1)
    cluster = Cluster(full("node-a"))
    held, lacking = (Pod.from_manifest(gated(name, gpus="1")) for name in ("held", "lacking"))
    waiting = [(held, Refusal("x", cause=Cause.GROUP)), (lacking, Refusal("x"))]
    answered = await cluster.controller.reconcile(waiting)
    assert [refusal.reason for _, refusal in answered] == ["x", "x; waits for a node: 1 GPU asked for"]


async def test_a_replica_that_is_elected_again_deletes_what_another_left() -> None:
    cluster = Cluster(full("node-a"))
    await cluster.reasons(gated("p", gpus="1"))
    left = dict(cluster.api.pods)
    await cluster.reasons()
    await cluster.reasons()
    assert cluster.controller.recheck_seconds is None
    cluster.api.pods.update(left)
    cluster.controller.elected()
    await cluster.reasons()
    assert cluster.api.pods == {}


async def test_what_is_reserved_for_a_gang_does_not_count_against_it() -> None:
    node = builders.node("node-a", gpus=2)
    entry = builders.allocation(f"{contract.BACKFILL_PREFIX}1", node.gpus[0].uuid, request=100, memory_gib=80, uid="m0")
    cluster = Cluster(dataclasses.replace(node, allocations=(entry,)))
    members = [gated(f"m{number}", gpus="1", group="g", group_size="3") for number in range(3)]
    assert await cluster.reasons(*members) == ["x", "x", "waits for a node: 1 GPU asked for"]
