"""Rules about nodes: which of them the agent chooses, and whether it can run there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final

from gpushare import contract, versions
from gpushare import node as machines
from gpushare.preflight.facts_of_cluster import GPU_PRESENT, KUBELET_DIRECTORY, KUBELET_VOLUME, ClusterFacts, Json, at
from gpushare.preflight.finding import Finding, Severity, counted, listed, names, rule, severity_for

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
_ARCHITECTURE: Final = "of the architecture {}, but images and library exist only for amd64 and arm64"
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


@rule(
    "gpu-nodes-labelled",
    "every node with GPUs has a label that selects the agent",
    "the agent runs only on labelled nodes, and shares are placed only where an agent runs",
)
def _labelled(facts: ClusterFacts) -> Iterator[Finding]:
    chosen = facts.gpu_nodes()
    others = [node for node in facts.of("Node") if node not in chosen and _has_gpu(node)]
    if others:
        named = [machines.name(other) for other in others]
        found = f"{counted(others)} with GPUs but without a label that selects the agent"
        remedy = "label the nodes whose GPUs gpushare is to share"
        command = f"kubectl label node {names(named, 'NODE...')} {_selecting_label(facts)}"
        # Another device plugin serves them, which may be intended.
        severity = Severity.INFO if all(map(_advertises_gpus, others)) else Severity.WARNING
        yield Finding(severity, found, subjects(others), remedy, (command,))
    elif not chosen:
        found = (
            f"no node has a label that selects the agent ({GPU_PRESENT}=true, or any {contract.NODE_CONFIG_LABEL}), so "
            "it runs nowhere and every pod that asks for a share waits"
        )
        remedy = (
            "install NVIDIA's GPU Feature Discovery or Node Feature Discovery, or label the nodes with GPUs; nodes "
            "that an autoscaler adds need the label in their template"
        )
        command = f"kubectl label node NODE {_selecting_label(facts)}"
        yield Finding(Severity.WARNING, found, (), remedy, (command,))


def _selecting_label(facts: ClusterFacts) -> str:
    """Return a label that selects the agent: with the component `opt-in`, only `gpushare.io/config` does."""
    labelled = {"metadata": {"name": "", "labels": {GPU_PRESENT: "true"}}}
    return f"{GPU_PRESENT}=true" if facts.plan.agent.selects(labelled) else f"{contract.NODE_CONFIG_LABEL}=default"


def _has_gpu(node: Json) -> bool:
    return any(key in machines.labels(node) for key in _HINTS) or _advertises_gpus(node)


def _advertises_gpus(node: Json) -> bool:
    return str(at(node, "status", "allocatable", _GPU) or "0") not in {"", "0"}


@rule("node-taints", "the agent tolerates the taints of the nodes with GPUs", "a node without an agent gets no shares")
def _taints(facts: ClusterFacts) -> Iterator[Finding]:
    chosen = facts.gpu_nodes()
    kept_off = [(item, taint) for item in chosen if (taint := facts.plan.agent.repelled(item)) is not None]
    for text in sorted({str(taint) for _, taint in kept_off}):
        concerned = [gpu_node for gpu_node, taint in kept_off if str(taint) == text]
        named = [machines.name(item) for item in concerned]
        key = text.partition("=")[0].partition(":")[0]
        found = f"{counted(concerned)} with the taint {text}, which the agent does not tolerate"
        remedy = f"tolerate {key} in the DaemonSet (in the chart's values or a kustomization), or remove the taint"
        command = f"kubectl taint node {names(named, 'NODE...')} {names([key], 'KEY')}-"
        yield Finding(severity_for(kept_off, chosen), found, subjects(concerned), remedy, (command,))


@rule(
    "pods-without-gpus",
    "pods without a share prefer nodes without GPUs",
    "CPU and memory that they use on a node with GPUs are missing for shares",
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
        found = (
            f"{counted(open_to_all)} with GPUs and no taint: kube-scheduler also places pods without a share there "
            "while these nodes are emptier, and GPUs on a node without free CPU cannot be used"
        )
        remedy = "prefer nodes without GPUs for those pods; pods with a share are not affected"
        command = f"kubectl taint node {names(named, 'NODE...')} {_GPU}=present:PreferNoSchedule"
        yield Finding(Severity.INFO, found, subjects(open_to_all), remedy, (command,))


def _repels_other_pods(node: Json, effects: Collection[str]) -> bool:
    return any(taint.get("effect") in effects for taint in at(node, "spec", "taints") or ())


@rule(
    "node-system",
    "the nodes with GPUs run Linux on amd64 or arm64",
    "the agent's image and the library are built for these",
)
def _system(facts: ClusterFacts) -> Iterator[Finding]:
    chosen = facts.gpu_nodes()
    for key, supported, sentence in (
        ("operatingSystem", {"linux"}, "with {}, but gpushare supports Linux only"),
        ("architecture", {"amd64", "arm64"}, _ARCHITECTURE),
    ):
        foreign = [item for item in chosen if info(item, key) not in {"", *supported}]
        if foreign:
            found = f"{counted(foreign)} {sentence.format(info(foreign[0], key))}"
            remedy = "remove the label that selects the agent"
            command = f"kubectl label node {names([machines.name(item) for item in foreign], 'NODE...')} {GPU_PRESENT}-"
            yield Finding(severity_for(foreign, chosen), found, subjects(foreign), remedy, (command,))


@rule("node-ready", "the nodes with GPUs are Ready", "agents and pods start only on nodes that are Ready")
def _ready(facts: ClusterFacts) -> Iterator[Finding]:
    ill = [gpu_node for gpu_node in facts.gpu_nodes() if machines.readiness(gpu_node) != "True"]
    if ill:
        found = f"{counted(ill)} not Ready: no agent starts there until then"
        command = f"kubectl describe node {names([machines.name(item) for item in ill], 'NODE')}"
        yield Finding(Severity.WARNING, found, subjects(ill), "check their kubelets", (command,))


@rule(
    "kubelet-root",
    "the agent mounts the kubelet's directory for device plugins",
    "with another directory the agent cannot register, and its pod does not start if the directory is missing",
)
def _kubelet(facts: ClusterFacts) -> Iterator[Finding]:
    chosen = facts.gpu_nodes()
    mounted = facts.plan.agent.host_path(KUBELET_VOLUME) or KUBELET_DIRECTORY
    for name, is_one, root in _KUBELETS:
        concerned = [item for item in chosen if is_one(item)]
        if concerned and not mounted.startswith(f"{root}/"):
            found = f"{counted(concerned)} of {name}, whose kubelet uses {root}, but the agent mounts {mounted}"
            remedy = "set the directory when you install"
            command = f"./install.sh --kubelet-root {root}"
            yield Finding(severity_for(concerned, chosen), found, subjects(concerned), remedy, (command,))


@rule(
    "container-runtime",
    "the container runtime is containerd 1.6 or newer, or CRI-O",
    "the runtime mounts the library and the devices into containers",
)
def _runtime(facts: ClusterFacts) -> Iterator[Finding]:
    by_runtime: dict[str, list[Json]] = {}
    for gpu_node in facts.gpu_nodes():
        by_runtime.setdefault(info(gpu_node, "containerRuntimeVersion"), []).append(gpu_node)
    for text, concerned in sorted(by_runtime.items()):
        name, version = versions.parse_runtime(text)
        if not text:
            sentence = f"{counted(concerned)} without a reported container runtime"
            yield Finding(Severity.UNKNOWN, sentence, subjects(concerned), "check that their kubelets run")
        elif name not in _RUNTIMES:
            found = f"{counted(concerned)} with {text}, which gpushare has not been tested with"
            yield Finding(Severity.WARNING, found, subjects(concerned), "use containerd 1.7 or newer, or CRI-O")
        elif name == "containerd" and version and version < versions.MIN_CONTAINERD:
            found = (
                f"{counted(concerned)} with containerd {versions.format_version(version)}; kubelets since 1.26 require "
                f"{versions.format_version(versions.MIN_CONTAINERD)} or newer"
            )
            remedy = f"update containerd; {versions.format_version(versions.MIN_CONTAINERD_CDI)} and newer support CDI"
            yield Finding(Severity.WARNING, found, subjects(concerned), remedy)


@rule(
    "kernel",
    "the kernel is 5.9 or newer",
    "a new agent needs CAP_CHECKPOINT_RESTORE to take over the memory ledgers of running containers; without it "
    "their processes keep their limits, but new processes in these containers fail",
)
def _kernel(facts: ClusterFacts) -> Iterator[Finding]:
    old = [
        gpu_node
        for gpu_node in facts.gpu_nodes()
        if (version := versions.parse_version(info(gpu_node, "kernelVersion")))
        and version < versions.MIN_KERNEL_RESTORE
    ]
    if old:
        found = (
            f"{counted(old)} with a kernel older than {versions.format_version(versions.MIN_KERNEL_RESTORE)} "
            f"({listed(sorted({info(item, 'kernelVersion') for item in old}))}), which has no CAP_CHECKPOINT_RESTORE"
        )
        remedy = "update the nodes' system; until then, delete a node's pods with shares before you replace its agent"
        yield Finding(Severity.WARNING, found, subjects(old), remedy)


@rule(
    "virtual-gpus",
    "the GPUs are not virtual GPUs of a hypervisor",
    "in a guest the driver may not report memory per process, and the audit needs that",
)
def _virtual(facts: ClusterFacts) -> Iterator[Finding]:
    guests = [node for node in facts.gpu_nodes() if machines.labels(node).get("nvidia.com/vgpu.present") == "true"]
    if guests:
        found = f"{counted(guests)} whose GPUs are vGPUs of a hypervisor, which are not tested"
        remedy = "test on one of them that limits hold"
        yield Finding(Severity.WARNING, found, subjects(guests), remedy, ("kubectl gpushare audit",))


RULES: Final = (_labelled, _taints, _untainted, _ready, _system, _kubelet, _runtime, _kernel, _virtual)
