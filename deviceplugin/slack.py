"""What pods that were made smaller still count for at the scheduler and the kubelet, though nobody has it. Pure.

The resources of a pod cannot change once it runs. So what its allocation has given up is offered a second time: the
node has that much more of the resource, for as long as that pod is there, and the pod that takes the room on the GPU
also finds it in the counters. Pods that were made larger need nothing: there the ledger is the stricter of the two.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping

from gpushare import contract, pod
from gpushare.allocation import Allocation
from gpushare.fitness import resources
from gpushare.gpunode import GpuNode
from gpushare.pod import PodJson

# By resource and GPU, the UUID of one that the pod is on: what is to be offered beyond what the GPUs have.
Slack = Mapping[str, Mapping[str, int]]


def slack(node: GpuNode | None, pods: Iterable[PodJson]) -> Slack:
    """Of this node.

    pods: those that are on it.
    """
    entries = {entry.id: entry for entry in (node.allocations if node is not None else ())}
    found: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for manifest in pods:
        entry = entries.get(pod.annotations_of(manifest).get(contract.ALLOCATION, ""))
        if entry is None or entry.pod.uid != pod.uid(manifest) or pod.is_terminal(manifest):
            continue
        counted = resources.requests(manifest)
        for name, given in _given(entry).items():
            if counted.get(name, 0) > given:
                found[name][entry.gpu_uuids[0]] += counted[name] - given
    return {name: dict(by_gpu) for name, by_gpu in found.items()}


def _given(entry: Allocation) -> dict[str, int]:
    return {
        contract.RESOURCE_PERCENT: sum(share.request_percent * len(share.gpu_uuids) for share in entry.shares),
        contract.RESOURCE_MEMORY: sum(share.memory_bytes * len(share.gpu_uuids) for share in entry.shares),
    }


def trimmed(manifest: PodJson) -> dict[str, object]:
    """Of a pod's spec what is needed here: our resources, by container."""
    return {
        kind: [
            {
                **({"restartPolicy": one["restartPolicy"]} if "restartPolicy" in one else {}),
                "resources": {
                    amounts: {name: text for name, text in (declared or {}).items() if name.startswith(contract.PREFIX)}
                    for amounts, declared in (one.get("resources") or {}).items()
                    if amounts in {"requests", "limits"}
                },
            }
            for one in containers
        ]
        for kind, containers in (
            ("containers", pod.containers(manifest)),
            ("initContainers", pod.init_containers(manifest)),
        )
    }
