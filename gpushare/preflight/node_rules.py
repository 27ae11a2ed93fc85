"""Rules about nodes: which of them the agent chooses, and whether it can run there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from gpushare import contract
from gpushare import node as machines
from gpushare.preflight.facts_of_cluster import GPU_PRESENT, KUBELET_DIRECTORY, KUBELET_VOLUME, ClusterFacts, at
from gpushare.preflight.finding import (
    MIN_CONTAINERD,
    MIN_CONTAINERD_CDI,
    MIN_KERNEL_RESTORE,
    Finding,
    Rule,
    Severity,
    counted,
    format_version,
    listed,
    names,
    parse_runtime,
    parse_version,
    severity_for,
)

Json = Mapping[str, Any]

_GPU = "nvidia.com/gpu"
# Other labels that mark GPU nodes, where neither NVIDIA's tools nor Node Feature Discovery have labelled a node.
_HINTS: Final = (
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "karpenter.k8s.aws/instance-gpu-count",
    "kubernetes.azure.com/accelerator",
    "nvidia.com/gpu.product",
)
_EFFECTS: Final = frozenset({"PreferNoSchedule", "NoSchedule", "NoExecute"})
_ARCHITECTURES: Final = frozenset({"amd64", "arm64"})
_RUNTIMES: Final = frozenset({"containerd", "cri-o"})
# Distributions whose kubelet has another directory: how to recognise their nodes, and the directory.
_KUBELETS: Final[tuple[tuple[str, Callable[[Json], bool], str], ...]] = (
    (
        "MicroK8s",
        lambda node: "microk8s.io/cluster" in machines.labels(node),
        "/var/snap/microk8s/common/var/lib/kubelet",
    ),
    ("k0s", lambda node: "+k0s" in info(node, "kubeletVersion"), "/var/lib/k0s/kubelet"),
)


def info(node: Json, key: str) -> str:
    """Return the kubelet's description of its node (`status.nodeInfo`)."""
    return str(at(node, "status", "nodeInfo", key) or "")


def subjects(concerned: list[Json]) -> tuple[str, ...]:
    """Return nodes as subjects of a finding."""
    return tuple(f"node/{machines.name(item)}" for item in concerned)


def _labelled(facts: ClusterFacts) -> Iterator[Finding]:
    chosen = facts.gpu_nodes()
    others = [node for node in facts.of("Node") if node not in chosen and _has_gpu(node)]
    if others:
        named = [machines.name(other) for other in others]
        yield Finding(
            Severity.WARNING,
            f"{counted(others)} with GPUs but without a label that selects the agent",
            subjects(others),
            "label the nodes whose GPUs gpushare is to share",
            (f"kubectl label node {names(named, 'NODE...')} {GPU_PRESENT}=true",),
        )
    elif not chosen:
        yield Finding(
            Severity.WARNING,
            f"no node has a label that selects the agent ({GPU_PRESENT}=true, or any {contract.NODE_CONFIG_LABEL}), so "
            "it runs nowhere and every pod that asks for a share waits",
            (),
            "install NVIDIA's GPU Feature Discovery or Node Feature Discovery, or label the nodes with GPUs; nodes "
            "that an "
            "autoscaler adds need the label in their template",
            (f"kubectl label node NODE {GPU_PRESENT}=true",),
        )


def _has_gpu(node: Json) -> bool:
    labels = machines.labels(node)
    allocatable = str(at(node, "status", "allocatable", _GPU) or "0")
    return any(key in labels for key in _HINTS) or allocatable not in {"", "0"}


def _taints(facts: ClusterFacts) -> Iterator[Finding]:
    chosen = facts.gpu_nodes()
    kept_off = [(item, taint) for item in chosen if (taint := facts.plan.agent.repelled(item)) is not None]
    for text in sorted({str(taint) for _, taint in kept_off}):
        concerned = [gpu_node for gpu_node, taint in kept_off if str(taint) == text]
        named = [machines.name(item) for item in concerned]
        key = text.partition("=")[0].partition(":")[0]
        yield Finding(
            severity_for(kept_off, chosen),
            f"{counted(concerned)} with the taint {text}, which the agent does not tolerate",
            subjects(concerned),
            f"add a toleration of {key} to the DaemonSet (in the chart's values or a kustomization), or remove "
            "the taint",
            (f"kubectl taint node {names(named, 'NODE...')} {names([key], 'KEY')}-",),
        )


def _untainted(facts: ClusterFacts) -> Iterator[Finding]:
    chosen = facts.gpu_nodes()
    others = [
        node
        for node in facts.of("Node")
        if node not in chosen and not _has_gpu(node) and not _repels_other_pods(node, {"NoSchedule", "NoExecute"})
    ]
    open_to_all = [node for node in chosen if not _repels_other_pods(node, _EFFECTS)]
    if others and open_to_all:
        named = [machines.name(node) for node in open_to_all]
        yield Finding(
            Severity.INFO,
            f"{counted(open_to_all)} with GPUs and no taint: kube-scheduler also places pods without a share there "
            "while these nodes are emptier, and GPUs on a node without free CPU cannot be used",
            subjects(open_to_all),
            "prefer nodes without GPUs for those pods; pods with a share are not affected",
            (f"kubectl taint node {names(named, 'NODE...')} {_GPU}=present:PreferNoSchedule",),
        )


def _repels_other_pods(node: Json, effects: Collection[str]) -> bool:
    return any(taint.get("effect") in effects for taint in at(node, "spec", "taints") or ())


def _system(facts: ClusterFacts) -> Iterator[Finding]:
    chosen = facts.gpu_nodes()
    windows = [item for item in chosen if info(item, "operatingSystem") not in {"", "linux"}]
    if windows:
        yield Finding(
            severity_for(windows, chosen),
            f"{counted(windows)} with {info(windows[0], 'operatingSystem')}, but gpushare supports Linux only",
            subjects(windows),
            "remove the label that selects the agent",
            (f"kubectl label node {names([machines.name(window) for window in windows], 'NODE...')} {GPU_PRESENT}-",),
        )
    foreign = [item for item in chosen if info(item, "architecture") not in {"", *_ARCHITECTURES}]
    if foreign:
        yield Finding(
            severity_for(foreign, chosen),
            f"{counted(foreign)} of the architecture {info(foreign[0], 'architecture')}, but images and library "
            f"exist only for {' and '.join(sorted(_ARCHITECTURES))}",
            subjects(foreign),
            "remove the label that selects the agent",
            (f"kubectl label node {names([machines.name(item) for item in foreign], 'NODE...')} {GPU_PRESENT}-",),
        )


def _ready(facts: ClusterFacts) -> Iterator[Finding]:
    ill = [gpu_node for gpu_node in facts.gpu_nodes() if machines.readiness(gpu_node) != "True"]
    if ill:
        yield Finding(
            Severity.WARNING,
            f"{counted(ill)} not Ready: no agent starts there until then",
            subjects(ill),
            "check their kubelets",
            (f"kubectl describe node {names([machines.name(item) for item in ill], 'NODE')}",),
        )


def _kubelet(facts: ClusterFacts) -> Iterator[Finding]:
    chosen = facts.gpu_nodes()
    mounted = facts.plan.agent.host_path(KUBELET_VOLUME) or KUBELET_DIRECTORY
    for name, is_one, root in _KUBELETS:
        concerned = [item for item in chosen if is_one(item)]
        if concerned and not mounted.startswith(f"{root}/"):
            yield Finding(
                severity_for(concerned, chosen),
                f"{counted(concerned)} of {name}, whose kubelet has its directory in {root}, but the agent mounts "
                f"{mounted}",
                subjects(concerned),
                "set the directory when you install",
                (f"./install.sh --kubelet-root {root}",),
            )


def _runtime(facts: ClusterFacts) -> Iterator[Finding]:
    by_runtime: dict[str, list[Json]] = {}
    for gpu_node in facts.gpu_nodes():
        by_runtime.setdefault(info(gpu_node, "containerRuntimeVersion"), []).append(gpu_node)
    for text, concerned in sorted(by_runtime.items()):
        name, version = parse_runtime(text)
        if not text:
            sentence = f"{counted(concerned)} without a reported container runtime"
            yield Finding(Severity.UNKNOWN, sentence, subjects(concerned), "check that their kubelets run")
        elif name not in _RUNTIMES:
            yield Finding(
                Severity.WARNING,
                f"{counted(concerned)} with {text}, which gpushare has not been tested with",
                subjects(concerned),
                "use containerd 1.7 or newer, or CRI-O",
            )
        elif name == "containerd" and version and version < MIN_CONTAINERD:
            yield Finding(
                Severity.WARNING,
                f"{counted(concerned)} with containerd {format_version(version)}; kubelets since 1.26 require "
                f"{format_version(MIN_CONTAINERD)} or newer",
                subjects(concerned),
                f"update containerd; {format_version(MIN_CONTAINERD_CDI)} and newer also support CDI",
            )


def _kernel(facts: ClusterFacts) -> Iterator[Finding]:
    old = [
        gpu_node
        for gpu_node in facts.gpu_nodes()
        if (version := parse_version(info(gpu_node, "kernelVersion"))) and version < MIN_KERNEL_RESTORE
    ]
    if old:
        yield Finding(
            Severity.WARNING,
            f"{counted(old)} with a kernel older than {format_version(MIN_KERNEL_RESTORE)} "
            f"({listed(sorted({info(item, 'kernelVersion') for item in old}))}), which has no CAP_CHECKPOINT_RESTORE",
            subjects(old),
            "update the nodes' system; until then, delete the pods with shares on a node before you replace its agent",
        )


def _virtual(facts: ClusterFacts) -> Iterator[Finding]:
    guests = [
        gpu_node for gpu_node in facts.gpu_nodes() if machines.labels(gpu_node).get("nvidia.com/vgpu.present") == "true"
    ]
    if guests:
        yield Finding(
            Severity.WARNING,
            f"{counted(guests)} whose GPUs are vGPUs of a hypervisor, which are not tested",
            subjects(guests),
            "test on one of them that limits hold",
            ("kubectl gpushare audit",),
        )


RULES: Final = (
    Rule(
        "gpu-nodes-labelled",
        "every node with GPUs has a label that selects the agent",
        "the agent runs only on labelled nodes, and shares are placed only where an agent runs",
        _labelled,
    ),
    Rule(
        "node-taints",
        "the agent tolerates the taints of the nodes with GPUs",
        "a node without an agent gets no shares",
        _taints,
    ),
    Rule(
        "pods-without-gpus",
        "pods without a share prefer nodes without GPUs",
        "CPU and memory that they use on a node with GPUs are missing for shares",
        _untainted,
    ),
    Rule("node-ready", "the nodes with GPUs are Ready", "agents and pods start only on nodes that are Ready", _ready),
    Rule(
        "node-system",
        "the nodes with GPUs run Linux on amd64 or arm64",
        "the agent's image and the library are built for these",
        _system,
    ),
    Rule(
        "kubelet-root",
        "the agent mounts the kubelet's directory for device plugins",
        "with another directory the agent cannot register, and its pod does not start if the directory is missing",
        _kubelet,
    ),
    Rule(
        "container-runtime",
        "the container runtime is containerd 1.6 or newer, or CRI-O",
        "the runtime mounts the library and the devices into containers",
        _runtime,
    ),
    Rule(
        "kernel",
        "the kernel is 5.9 or newer",
        "a new agent needs CAP_CHECKPOINT_RESTORE to take over the memory ledgers of running containers; without it "
        "their processes keep their limits, but new processes in these containers fail",
        _kernel,
    ),
    Rule(
        "virtual-gpus",
        "the GPUs are not virtual GPUs of a hypervisor",
        "in a guest the driver may not report memory per process, and the audit needs that",
        _virtual,
    ),
)
