"""A healthy cluster as facts. Tests break it in one place at a time."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

from gpushare import contract
from gpushare.contract import CONDITION_DEVICES_INJECTED
from gpushare.preflight import cluster_rules, facts_of_cluster, health_rules
from gpushare.preflight.facts_of_cluster import ClusterFacts, Trial
from tests.config import manifests

Json = dict[str, Any]
SYSTEM = contract.SYSTEM_NAMESPACE
WORKLOADS = ("DaemonSet", "Deployment")
CDI = "version: v1\nflags:\n  plugin:\n    deviceListStrategy: cdi-cri\n"


def named(kind: str, name: str, namespace: str = "", *, labels: dict[str, str] | None = None, **more: Any) -> Json:
    metadata: Json = {"name": name, "labels": labels or {}}
    if namespace:
        metadata["namespace"] = namespace
    return {"kind": kind, "metadata": metadata, **more}


def node(name: str, *, labels: dict[str, str] | None = None, taints: tuple[Json, ...] = (), **info: str) -> Json:
    has = {facts_of_cluster.GPU_PRESENT: "true", "nvidia.com/cuda.driver-version.full": "570.86.15", **(labels or {})}
    node_info = {
        "kernelVersion": "6.8.0-45-generic",
        "containerRuntimeVersion": "containerd://2.0.1",
        "operatingSystem": "linux",
        "architecture": "amd64",
        "kubeletVersion": "v1.36.2",
        **info,
    }
    status = {"nodeInfo": node_info, "conditions": [{"type": "Ready", "status": "True"}], "allocatable": {}}
    return named("Node", name, labels=has, spec={"taints": list(taints)}, status=status)


def daemonset(name: str, namespace: str, image: str = "x", **pod: Any) -> Json:
    spec = {"containers": [{"name": "main", "image": image}], "tolerations": [{"operator": "Exists"}], **pod}
    return named("DaemonSet", name, namespace, spec={"template": {"spec": spec}})


def pod(name: str, namespace: str, where: str, *, component: str = "", ready: bool = True, **more: Any) -> Json:
    labels = {"app.kubernetes.io/component": component} if component else {}
    conditions = [{"type": "Ready", "status": str(ready)}]
    status = {"phase": "Running", "conditions": conditions, **more.pop("status", {})}
    return named("Pod", name, namespace, labels=labels, spec={"nodeName": where, **more}, status=status)


@functools.cache
def base(part: str) -> Json:
    (workload,) = [
        document for document in manifests.documents(manifests.CONFIG / "base" / part) if document["kind"] in WORKLOADS
    ]
    return workload


def ours() -> list[Json]:
    """Return the workloads of config/base with images from a registry, the component cdi and matching
    configurations.
    """
    agent = copy.deepcopy(base("deviceplugin/daemonset.yaml"))
    webhook = copy.deepcopy(base("webhook/deployment.yaml"))
    for workload in (agent, webhook):
        for container in workload["spec"]["template"]["spec"]["containers"]:
            container["image"] = f"registry.example.org/gpushare/{container['name']}:0.3.0"
    agent["spec"]["template"]["spec"]["volumes"].append({"name": "cdi", "hostPath": {"path": "/var/run/cdi"}})
    configurations = named("ConfigMap", contract.CONFIG_MAP, SYSTEM, data={"default": CDI})
    webhook["status"] = {"readyReplicas": 2}
    return [agent, webhook, configurations]


def gpunode(name: str, **statuses: str) -> Json:
    said = {"Ready": "True", "ConfigValid": "True", "ConfigPending": "False", "LimitsInForce": "True", **statuses}
    conditions = [{"type": key, "status": value, "message": f"{key} is {value}"} for key, value in said.items()]
    return named("GPUNode", name, status={"conditions": conditions})


def objects(*, installing: bool) -> dict[str, tuple[Json, ...]]:
    cluster: dict[str, tuple[Json, ...]] = dict.fromkeys(facts_of_cluster.KINDS, ())
    cluster["Node"] = (node("gpu-1"), node("gpu-2", labels={"kubernetes.io/arch": "arm64"}, architecture="arm64"))
    cluster["Namespace"] = (
        named("Namespace", "default", labels={"pod-security.kubernetes.io/enforce": "baseline"}),
        named("Namespace", "kube-system"),
    )
    if installing:
        return cluster
    agent, webhook, configurations = ours()
    cluster |= {"DaemonSet": (agent,), "Deployment": (webhook,), "ConfigMap": (configurations,)}
    privileged = {"pod-security.kubernetes.io/enforce": "privileged"}
    cluster["Namespace"] += (named("Namespace", SYSTEM, labels=privileged),)
    hook = {"name": contract.WEBHOOK_NAME, "clientConfig": {"caBundle": "eA=="}}
    cluster["MutatingWebhookConfiguration"] = (named("MutatingWebhookConfiguration", "gpushare", webhooks=[hook]),)
    cluster["ValidatingAdmissionPolicyBinding"] = tuple(
        named("ValidatingAdmissionPolicyBinding", name) for name in health_rules.BINDINGS
    )
    cluster["GPUNode"] = tuple(gpunode(name, **{CONDITION_DEVICES_INJECTED: "True"}) for name in ("gpu-1", "gpu-2"))
    cluster["Pod"] = tuple(pod(f"a-{name}", SYSTEM, name, component="agent") for name in ("gpu-1", "gpu-2"))
    return cluster


def cluster_facts(change: Callable[[dict[str, Any]], None] | None = None, *, installing: bool = False) -> ClusterFacts:
    """Return the facts of the healthy cluster, after `change` has modified the arguments."""
    trial = Trial({"metadata": {"annotations": {contract.ALLOCATION: "x"}}})
    facts: dict[str, Any] = {
        "plan": facts_of_cluster.from_manifests(ours()),
        "installing": installing,
        "version": "v1.36.2",
        "groups": frozenset({"apps"}),
        "objects": objects(installing=installing),
        "rights": dict.fromkeys(cluster_rules.RIGHTS, True),
        "trial": None if installing else trial,
        "unread": {},
    }
    if change is not None:
        change(facts)
    return ClusterFacts(**facts)
