"""Rules about other GPU software: sharers, MIG managers, the GPU Operator, DRA, Kueue, sandboxes.

Software is recognised by the names and images of its workloads, or by its API group.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gpushare import contract
from gpushare import node as objects
from gpushare.preflight.facts_of_cluster import ClusterFacts, Json, Workload, at, namespace
from gpushare.preflight.finding import Finding, Severity, counted, names, rule
from gpushare.preflight.node_rules import subjects


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
        words = f"{namespace(item)}/{objects.name(item)} {' '.join(Workload.from_manifest(item).images())}"
        match = next((line for line in table if re.search(line.pattern, words)), None)
        if match is not None:
            yield match, item


def on_nodes(workload: Json, machines: Iterable[Json]) -> tuple[str, ...]:
    """Return the names of the nodes on which a DaemonSet's pods run, or would."""
    pods = Workload.from_manifest(workload)
    return tuple(objects.name(node) for node in machines if pods.selects(node) and pods.repelled(node) is None)


def workload_name(workload: Json) -> str:
    """Return a workload's name for a finding: `daemonset NAMESPACE/NAME`."""
    kind = str(workload.get("kind") or "DaemonSet").lower()
    return f"{kind} {namespace(workload)}/{objects.name(workload)}"


_KAI_GROUPS: Final = frozenset({"kai.scheduler", "scheduling.run.ai"})
_KUEUE = "kueue.x-k8s.io"
_DRA_CLASSES: Final = frozenset({"gpu.nvidia.com", "mig.nvidia.com"})
_MIG_CONFIG = "nvidia.com/mig.config"
_MIG_RESOURCE = "nvidia.com/mig-"
_SANDBOXES: Final = {"runsc": "gVisor", "gvisor": "gVisor", "kata": "Kata Containers", "firecracker": "Firecracker"}


@rule(
    "other-sharers",
    "no other GPU sharing software is on gpushare's nodes",
    "two sharers do not know each other's allocations, and together they overcommit the GPU",
)
def _sharers(facts: ClusterFacts) -> Iterator[Finding]:
    machines = facts.gpu_nodes()
    seen: set[str] = set()
    for sharer, workload in workloads(facts, "DaemonSet", SHARERS):
        concerned = on_nodes(workload, machines)
        seen.add(sharer.name)
        severity = Severity.BLOCKING if concerned else Severity.INFO
        found = f"{sharer.name} ({workload_name(workload)}) " + (
            f"runs on {len(concerned)} of gpushare's nodes" if concerned else "runs on none of gpushare's nodes"
        )
        remedy = "keep it off these nodes, or remove the label that selects gpushare's agent" * bool(concerned)
        commands = _off(sharer.off_by, concerned)
        yield Finding(severity, found, tuple(f"node/{name}" for name in concerned), remedy, commands)
    groups = facts.groups or frozenset()
    for sharer in SHARERS:
        if sharer.group and sharer.group in groups and sharer.name not in seen:
            sentence = f"the API group {sharer.group} of {sharer.name} exists, but no DaemonSet of it"
            yield Finding(Severity.INFO, sentence)
    if _KAI_GROUPS & groups:
        found = "KAI-Scheduler is installed: if its GPU sharing is on, it gives fractions of GPUs to pods of its queues"
        remedy = "disable its GPU sharing (global.gpuSharingMode=Disabled), or restrict it to nodes without gpushare"
        yield Finding(Severity.WARNING, found, (), remedy)


def _off(label: str, concerned: tuple[str, ...]) -> tuple[str, ...]:
    return (f"kubectl label node {names(concerned, 'NODE...')} --overwrite {label}",) if label and concerned else ()


@rule(
    "dra-driver",
    "no DRA driver offers the same GPUs",
    "gpushare does not see claims through DRA, and places shares on the same GPU",
)
def _dra(facts: ClusterFacts) -> Iterator[Finding]:
    classes = sorted({objects.name(device_class) for device_class in facts.of("DeviceClass")} & _DRA_CLASSES)
    if classes:
        found = f"NVIDIA's DRA driver offers GPUs by the DeviceClass {' and '.join(classes)}"
        remedy = "limit it to ComputeDomains (resources.gpus.enabled=false), or keep its plugin off gpushare's nodes"
        yield Finding(Severity.WARNING, found, tuple(f"deviceclass/{name}" for name in classes), remedy)


@rule(
    "mig-writers",
    "no other software partitions the GPUs of gpushare's nodes",
    "two MIG managers undo each other's work and remove the devices of running pods",
)
def _mig_writers(facts: ClusterFacts) -> Iterator[Finding]:
    machines = facts.gpu_nodes()
    cuts = "SYS_ADMIN" in facts.plan.agent.capabilities()
    for writer, workload in workloads(facts, "DaemonSet", MIG_WRITERS):
        concerned = on_nodes(workload, machines)
        if concerned:
            severity = Severity.BLOCKING if cuts else Severity.WARNING
            found = f"{writer.name} ({workload_name(workload)}) runs on {len(concerned)} of gpushare's nodes" + (
                ", and the agent may partition GPUs there too" if cuts else ""
            )
            remedy = "keep it off these nodes"
            commands = _off(writer.off_by, concerned)
            yield Finding(severity, found, tuple(f"node/{name}" for name in concerned), remedy, commands)


@rule(
    "mig-off",
    "GPUs for sharing by annotation have MIG off",
    "a GPU in MIG mode cannot be shared by annotation, as a program sees only one of its devices",
)
def _mig_on(facts: ClusterFacts) -> Iterator[Finding]:
    ours = {objects.name(gpunode) for gpunode in facts.known(contract.GPUNODE_KIND)}
    cut = [
        gpu_node
        for gpu_node in facts.gpu_nodes()
        if objects.name(gpu_node) not in ours
        and (
            objects.labels(gpu_node).get(_MIG_CONFIG, "all-disabled") != "all-disabled"
            or any(str(key).startswith(_MIG_RESOURCE) for key in at(gpu_node, "status", "allocatable") or ())
        )
    ]
    if cut:
        found = f"{counted(cut)} whose GPUs are partitioned by MIG"
        remedy = "disable MIG where you want such shares, or keep the partitions by a configuration (docs/mig.md)"
        where = names([objects.name(item) for item in cut], "NODE...")
        command = f"kubectl label node {where} --overwrite {_MIG_CONFIG}=all-disabled # with a MIG manager"
        yield Finding(Severity.WARNING, found, subjects(cut), remedy, (command,))


@rule(
    "gpu-operator",
    "the GPU Operator, if there is one, is ready",
    "the operator installs the driver and the container toolkit, which the agent needs",
)
def _operator(facts: ClusterFacts) -> Iterator[Finding]:
    for policy in facts.of("ClusterPolicy"):
        state = str(at(policy, "status", "state") or "")
        if state != "ready":
            found = f"the GPU Operator is not ready: its state is {state or 'not reported'}"
            remedy = "wait until its driver and toolkit are ready; agents that start earlier restart until then"
            command = "kubectl get clusterpolicies.nvidia.com"
            yield Finding(Severity.WARNING, found, (f"clusterpolicy/{objects.name(policy)}",), remedy, (command,))


@rule("kueue", "Kueue does not admit the same pods", "two queues in front of the same pods need a defined order")
def _kueue(facts: ClusterFacts) -> Iterator[Finding]:
    if _KUEUE in facts.fact(facts.groups, "groups"):
        found = "Kueue is installed: a pod gets its share only after Kueue has removed its gate"
        remedy = f"count {contract.RESOURCE_PERCENT} in ClusterQueues, so that queues admit no more than the GPUs offer"
        yield Finding(Severity.INFO, found, (), remedy)


@rule(
    "sandboxes",
    "no RuntimeClass runs containers in a sandbox",
    "the library reaches the arbiter through a host socket, which a virtual machine or gVisor does not have",
)
def _sandboxes(facts: ClusterFacts) -> Iterator[Finding]:
    for runtime_class in facts.of("RuntimeClass"):
        handler = str(runtime_class.get("handler") or "")
        kind = next((label for word, label in _SANDBOXES.items() if word in handler), "")
        if kind:
            found = f"pods of the RuntimeClass {objects.name(runtime_class)} ({kind}) reach neither arbiter nor GPU"
            remedy = "use the default runtime for pods with a share"
            yield Finding(Severity.INFO, found, (f"runtimeclass/{objects.name(runtime_class)}",), remedy)


RULES: Final = (_sharers, _dra, _mig_writers, _mig_on, _operator, _kueue, _sandboxes)
