"""Builders for pods, GPUs and nodes, so that a test shows only what it is about."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import Any

from gpushare import contract, mig_shares
from gpushare.allocation import Allocation, GivenShare, Isolation, Labels, PodRef
from gpushare.gpunode import Gpu, GpuNode
from gpushare.mig import catalogue
from gpushare.mig.instance_layout import ProfileGeometry
from gpushare.mix import NO_HOST, Host, Mix, classes_of
from gpushare.placement import NodeView
from gpushare.request import Request

GIB = 2**30


def pod(
    name: str = "trainer",
    *,
    namespace: str = "default",
    containers: tuple[str, ...] = ("main",),
    uid: str = "",
    labels: dict[str, str] | None = None,
    spec: dict[str, Any] | None = None,
    phase: str = "",
    **annotations: str,
) -> dict[str, Any]:
    """Build a pod; `request="0.5"` becomes the annotation `gpushare.io/request`, `min_memory` `…/min-memory`.

    uid, labels, phase: left out if they are empty. spec: further fields of the spec.
    """
    keys = {contract.PREFIX + key.replace("_", "-"): value for key, value in annotations.items()}
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "annotations": keys}
    metadata |= {"uid": uid} if uid else {}
    metadata |= {"labels": labels} if labels is not None else {}
    made = [{"name": container, "image": "gpushare/sample:0.1"} for container in containers]
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": made, **(spec or {})}}
    return manifest | ({"status": {"phase": phase}} if phase else {})


def in_turn(*, warm: str, main: str, restarts: str | None = None, **annotations: Any) -> dict[str, Any]:
    """Build a pod whose init container `warm` and container `main` have separate shares; memory follows the request."""
    shares: dict[str, Any] = {"request.warm": warm, "request.main": main}
    manifest = pod(**shares, **annotations)
    manifest["spec"]["initContainers"] = [
        {"name": "warm", "image": "x"} | ({"restartPolicy": restarts} if restarts else {})
    ]
    return manifest


def counted(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the pod with our resources in its first container, as a placed pod has them."""
    amounts = {contract.RESOURCE_PERCENT: "50"}
    manifest["spec"]["containers"][0]["resources"] = {"limits": amounts, "requests": amounts}
    return manifest


def gpu(index: int = 0, *, node: str = "node-a", memory_gib: int = 80, **fields: Any) -> Gpu:
    """Build a GPU: by default a healthy, fractional A100."""
    known = {"model": "NVIDIA A100-SXM4-80GB", "compute_capability": (8, 0), **fields}
    return Gpu(uuid=f"GPU-{node}-{index}", index=index, memory_bytes=memory_gib * GIB, **known)


def mig_geometry(model: str = "H100-80GB", *, memory_gib: int = 80) -> tuple[ProfileGeometry, ...]:
    """Return the profiles that shares on a GPU of this model of the catalogue may have."""
    return mig_shares.profiles(catalogue.MODELS[model], memory_gib * GIB)


def node(name: str = "node-a", *, gpus: int = 4, memory_gib: int = 80, **fields: Any) -> GpuNode:
    """Build a node of equal GPUs."""
    return GpuNode(name, gpus=tuple(gpu(index, node=name, memory_gib=memory_gib, **fields) for index in range(gpus)))


def allocation(
    identity: str = "a1",
    *uuids: str,
    request: int = 50,
    limit: int = 100,
    memory_gib: int = 8,
    pod_name: str = "trainer",
    uid: str = "",
    reserved_until: float | None = None,
    isolation: Isolation = Isolation.ARBITER,
    affinity: str = "",
    anti_affinity: str = "",
    exclusion: str = "",
) -> Allocation:
    """Build an allocation with one share on these GPUs."""
    return Allocation(
        id=identity,
        pod=PodRef("default", pod_name, uid),
        shares=(GivenShare(("main",), uuids or ("GPU-node-a-0",), request, limit, memory_gib * GIB),),
        reserved_until=reserved_until,
        labels=Labels(affinity, anti_affinity, exclusion, isolation),
    )


def views(*nodes: GpuNode) -> list[NodeView]:
    """Build the views that placement works on."""
    return [NodeView.from_node(node) for node in nodes]


def agent_resources(gpus: int, *, memory_gib: int = 80) -> dict[str, str]:
    """Return our resources in `status.allocatable` of a node with so many GPUs and a running agent."""
    return {
        contract.RESOURCE_PERCENT: str(gpus * 100),
        contract.RESOURCE_MEMORY: f"{gpus * memory_gib}Gi",
        contract.RESOURCE_IDLE: str(gpus * contract.IDLE_SHARES_PER_GPU),
    }


def node_object(
    name: str = "node-a",
    *,
    gpus: int = 4,
    ready: str = "True",
    uid: str = "",
    labels: Mapping[str, str] | None = None,
    allocatable: dict[str, str] | None = None,
    spec: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Build a Kubernetes Node whose agent runs, with 8 CPUs, 64Gi and room for 110 pods.

    uid: with it, the Node also has a resource version, as a stored one does. labels, allocatable: in addition to these,
    and instead of those of the same name.
    """
    stored = {"uid": uid, "resourceVersion": "1"} if uid else {}
    amounts = {"cpu": "8", "memory": "64Gi", "pods": "110", **agent_resources(gpus), **(allocatable or {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {contract.HOSTNAME_LABEL: name, **(labels or {})}} | stored,
        "spec": spec or {},
        "status": {"allocatable": amounts, "conditions": [{"type": "Ready", "status": ready}]},
    }


def mix(requests: Iterable[Request], hosts: Iterable[Host] | None = None) -> Mix:
    """Build a mix of these requests; with `hosts`, it also has the resources of their nodes."""
    pods = list(requests)
    node_hosts = list(hosts) if hosts is not None else [NO_HOST] * len(pods)
    counts = collections.Counter(
        asked for request, host in zip(pods, node_hosts, strict=True) for asked in classes_of(request, host)
    )
    return Mix.from_counts(counts, pods=len(pods))
