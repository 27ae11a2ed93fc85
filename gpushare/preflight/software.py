"""Other GPU software, recognised by the names and images of its workloads, or by its API group."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from gpushare import contract
from gpushare import node as nodes
from gpushare.preflight.facts_of_cluster import ClusterFacts, namespace
from gpushare.preflight.workload import Workload

Json = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Software:
    """`pattern`: matched against `NAMESPACE/NAME IMAGE…` of a workload. `off_by`: a node label that keeps it away."""

    name: str
    pattern: str
    off_by: str = ""
    group: str = ""


# Software that advertises nvidia.com/gpu. The first match wins.
DEVICE_PLUGINS: Final = (
    Software("GKE's device plugin", r"/nvidia-gpu-device-plugin", "gke-no-default-nvidia-gpu-device-plugin=true"),
    Software(
        "the GPU Operator's device plugin",
        r"/nvidia-(sandbox-)?device-plugin-daemonset .*|gpu-operator/.*device-plugin",
        "nvidia.com/gpu.deploy.device-plugin=false",
    ),
    Software("NVIDIA's device plugin", r"/nvidia-device-plugin|/nvdp-|k8s-device-plugin"),
)

# Software that shares GPUs of a node by other means.
SHARERS: Final = (
    Software("HAMi", r"/hami-|/hami |projecthami/", "gpu=off"),
    Software("KAI's GPU fractions", r"gpu-fractioning", "", "gpu-fractioning.nvidia.com"),
    Software("Alibaba's gpushare", r"/gpushare-device-plugin|k8s-gpushare", "gpushare=false"),
    Software("TensorFusion", r"tensor-fusion", "", "tensor-fusion.ai"),
    Software("Volcano's vGPU plugin", r"volcano(-vgpu)?-device-plugin"),
    Software("NVIDIA's DRA driver", r"nvidia-dra-driver|dra-driver-nvidia|k8s-dra-driver-gpu"),
    Software("Run:ai", r"^runai/|/runai-"),
    Software("nos", r"/nos-gpu|nebuly-nos"),
    Software("nvshare", r"/nvshare-"),
    Software("KubeShare", r"/kubeshare-"),
    Software("vgpu-manager", r"vgpu-manager"),
    Software("GPUManager", r"/gpu-manager-daemonset|gpu-manager:"),
)

# Software that partitions GPUs by MIG.
MIG_WRITERS: Final = (
    Software("NVIDIA's MIG manager", r"mig-manager|mig-parted", "nvidia.com/gpu.deploy.mig-manager=false"),
    Software("nos' MIG agent", r"/nos-mig|nos-migagent"),
)


def workloads(facts: ClusterFacts, kind: str, table: Sequence[Software]) -> Iterator[tuple[Software, Json]]:
    """Yield the workloads of a kind that match a table, with the matching row. Raises `Unread`."""
    for item in facts.of(kind):
        if namespace(item) == contract.SYSTEM_NAMESPACE:
            continue
        words = f"{namespace(item)}/{nodes.name(item)} {' '.join(Workload.from_manifest(item).images())}"
        match = next((line for line in table if re.search(line.pattern, words)), None)
        if match is not None:
            yield match, item


def on_nodes(workload: Json, machines: Iterable[Json]) -> tuple[str, ...]:
    """Return the names of the nodes on which a DaemonSet's pods run, or would."""
    pods = Workload.from_manifest(workload)
    return tuple(
        nodes.name(machine) for machine in machines if pods.selects(machine) and pods.repelled(machine) is None
    )


def workload_name(workload: Json) -> str:
    """Return a workload's name for a finding: `daemonset NAMESPACE/NAME`."""
    kind = str(workload.get("kind") or "DaemonSet").lower()
    return f"{kind} {namespace(workload)}/{nodes.name(workload)}"
