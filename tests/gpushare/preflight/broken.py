"""Clusters with one fault each, and the finding that reports it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from gpushare.preflight import facts_of_cluster, health_rules
from gpushare.preflight.facts_of_cluster import InstallPlan, Trial, Workload
from gpushare.preflight.finding import Severity
from tests.config import manifests
from tests.gpushare.preflight import sound
from tests.gpushare.preflight.sound import daemonset, named, node, pod

Change = Callable[[dict[str, Any]], None]
BLOCKING, WARNING, UNKNOWN, INFO = Severity.BLOCKING, Severity.WARNING, Severity.UNKNOWN, Severity.INFO
GKE = {"apiVersion": "v1", "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["system-node-critical"]}]}}  # fmt: skip
POLICY: dict[str, Any] = {"spec": {"cdi": {"enabled": True}, "toolkit": {"env": []}}, "status": {"state": "ready"}}
DEFRAG = manifests.CONFIG / "components" / "defrag" / "cronjob.yaml"
ACCEPT = "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED"


def with_objects(kind: str, *more: dict[str, Any], only: bool = False) -> Change:
    """Add these objects to the cluster; with `only`, replace all others of their kind."""

    def change(facts: dict[str, Any]) -> None:
        facts["objects"][kind] = more if only else (*facts["objects"][kind], *more)

    return change


def setting(**values: Any) -> Change:
    return lambda facts: facts.update(values)


def nodes(*manifests: dict[str, Any]) -> Change:
    return with_objects("Node", *manifests, only=True)


def both(*changes: Change) -> Change:
    def change(facts: dict[str, Any]) -> None:
        for change in changes:
            change(facts)

    return change


def by_variable(facts: dict[str, Any]) -> None:
    """Select devices by environment variable, before any agent has reported."""
    facts["plan"] = dataclasses.replace(facts["plan"], configurations={"default": "version: v1"})
    facts["objects"]["GPUNode"] = ()


def without_gpunodes(facts: dict[str, Any]) -> None:
    facts["objects"]["GPUNode"] = ()


def without_volume(facts: dict[str, Any]) -> None:
    without_gpunodes(facts)
    facts["plan"] = dataclasses.replace(facts["plan"], agent=Workload({"volumes": []}))


def agent_is(**more: Any) -> Change:
    def change(facts: dict[str, Any]) -> None:
        facts["plan"] = dataclasses.replace(facts["plan"], agent=Workload({**facts["plan"].agent.pod, **more}))

    return change


def refused(words: str) -> Change:
    return setting(trial=Trial(None, words))


def policy(**spec: Any) -> dict[str, Any]:
    return named("ClusterPolicy", "cluster-policy", spec=POLICY["spec"] | spec, status=POLICY["status"])


def failed(words: str) -> str:
    return f'InternalError: failed calling webhook "pods.gpushare.io": {words}'


BUSY: dict[str, Any] = {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
CRASHED = {
    "containerStatuses": [
        {
            "name": "agent",
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
            "lastState": {"terminated": {"message": "no driver"}},
        }
    ]
}
CUT = {"status": {"allocatable": {"nvidia.com/mig-1g.5gb": "7"}}}

# fault → (change, rule, severity, part of the message, subjects)
BROKEN: dict[str, tuple[Change, str, Severity, str, tuple[str, ...]]] = {
    "Kubernetes too old": (setting(version="v1.29.9"), "kubernetes-version", BLOCKING, "needs 1.30 or newer", ()),
    "Kubernetes too new": (setting(version="v1.40.0-alpha"), "kubernetes-version", INFO, "1.30 to 1.37", ()),
    "Kubernetes with an unknown version": (setting(version="main"), "kubernetes-version", UNKNOWN, "'main'", ()),
    "a restricted system namespace": (
        with_objects("Namespace", named("Namespace", sound.SYSTEM, labels={"pod-security.kubernetes.io/enforce": "restricted"}), only=True),
        "system-namespace", BLOCKING, "restricted, which rejects the agent's pods", (f"namespace/{sound.SYSTEM}",)),
    "users without a Pod Security Standard": (
        with_objects("Namespace", named("Namespace", "ml")), "user-namespaces", WARNING, "1 namespace without", ("namespace/ml",)),
    "users on OpenShift": (
        both(with_objects("Namespace", named("Namespace", "ml")), setting(groups=frozenset({"security.openshift.io"}))),
        "user-namespaces", INFO, "security context constraints", ()),
    "a quota for critical pods": (
        with_objects("ResourceQuota", named("ResourceQuota", "gcp", "kube-system", spec=GKE)),
        "critical-pods-quota", WARNING, "kube-system has a ResourceQuota for system-critical pods", (f"namespace/{sound.SYSTEM}",)),
    "a quota of CPU limits": (
        with_objects("ResourceQuota", named("ResourceQuota", "q", sound.SYSTEM, spec={"hard": {"limits.cpu": "1"}})),
        "system-quota", WARNING, "q of gpushare-system has limits.cpu", (f"namespace/{sound.SYSTEM}",)),
    "a policy engine": (
        with_objects("MutatingWebhookConfiguration", named("MutatingWebhookConfiguration", "kyverno-resource", webhooks=[])),
        "other-admission", INFO, "Kyverno validates pods", ("mutatingwebhookconfiguration/kyverno-resource",)),
    "a webhook that covers every pod": (
        with_objects("MutatingWebhookConfiguration", named("MutatingWebhookConfiguration", "other", webhooks=[{"rules": [{"apiGroups": [""], "resources": ["pods"]}]}])),
        "other-admission", INFO, "other fails closed for every pod", ("mutatingwebhookconfiguration/other",)),
    "no label": (
        nodes(named("Node", "cpu-1")), "gpu-nodes-labelled", WARNING, "no node has a label that selects the agent", ()),
    "a GPU without a label": (
        with_objects("Node", named("Node", "gke", labels={"cloud.google.com/gke-accelerator": "nvidia-l4"})),
        "gpu-nodes-labelled", WARNING, "1 node with GPUs but without a label that selects the agent", ("node/gke",)),
    "a taint on one node": (
        with_objects("Node", node("gpu-3", taints=({"key": "sku", "value": "gpu", "effect": "NoSchedule"},))),
        "node-taints", WARNING, "1 node with the taint sku=gpu:NoSchedule", ("node/gpu-3",)),
    "a taint on all nodes": (
        nodes(node("gpu-3", taints=({"key": "sku", "value": "gpu", "effect": "NoSchedule"},))),
        "node-taints", BLOCKING, "1 node with the taint sku=gpu:NoSchedule", ("node/gpu-3",)),
    "nodes with GPUs that accept any pod": (
        with_objects("Node", named("Node", "cpu-1")), "pods-without-gpus", INFO, "2 nodes with GPUs and no taint", ("node/gpu-1", "node/gpu-2")),
    "a node that is not Ready": (
        with_objects("Node", named("Node", "gpu-3", labels={facts_of_cluster.GPU_PRESENT: "true"}, status={"conditions": [{"type": "Ready", "status": "Unknown"}]})),
        "node-ready", WARNING, "1 node not Ready", ("node/gpu-3",)),
    "Windows": (with_objects("Node", node("win", operatingSystem="windows")), "node-system", WARNING, "1 node with windows", ("node/win",)),
    "s390x": (with_objects("Node", node("z", architecture="s390x")), "node-system", WARNING, "architecture s390x", ("node/z",)),
    "MicroK8s": (
        nodes(node("m", labels={"microk8s.io/cluster": "true"})), "kubelet-root", BLOCKING, "/var/snap/microk8s/common", ("node/m",)),
    "k0s": (with_objects("Node", node("k", kubeletVersion="v1.36.2+k0s")), "kubelet-root", WARNING, "/var/lib/k0s/kubelet", ("node/k",)),
    "Docker": (with_objects("Node", node("d", containerRuntimeVersion="docker://27.1")), "container-runtime", WARNING, "docker://27.1", ("node/d",)),
    "old containerd": (
        with_objects("Node", node("c", containerRuntimeVersion="containerd://1.5.9")), "container-runtime", WARNING, "containerd 1.5.9", ("node/c",)),
    "a node without a reported runtime": (
        with_objects("Node", node("c", containerRuntimeVersion="")), "container-runtime", UNKNOWN, "without a reported container runtime", ("node/c",)),
    "an old kernel": (
        with_objects("Node", node("k", kernelVersion="4.18.0-553.el8_10.x86_64")), "kernel", WARNING, "4.18.0-553.el8_10", ("node/k",)),
    "a vGPU": (with_objects("Node", node("v", labels={"nvidia.com/vgpu.present": "true"})), "virtual-gpus", WARNING, "1 node whose GPUs are vGPUs", ("node/v",)),
    "the operator's device plugin": (
        with_objects("DaemonSet", daemonset("nvidia-device-plugin-daemonset", "gpu-operator", nodeSelector={facts_of_cluster.GPU_PRESENT: "true"})),
        "gpu-owner", BLOCKING, "allocates the GPUs of 2 nodes", ("node/gpu-1", "node/gpu-2")),
    "a device plugin by its image": (
        with_objects("DaemonSet", daemonset("dp", "kube-system", "nvcr.io/nvidia/k8s-device-plugin:v0.17.0")),
        "gpu-owner", BLOCKING, "NVIDIA's device plugin (daemonset kube-system/dp)", ("node/gpu-1", "node/gpu-2")),
    "an unknown device plugin": (
        both(without_gpunodes, with_objects("Node", {**node("b"), "status": {"allocatable": {"nvidia.com/gpu": "4"}}})),
        "gpu-owner", BLOCKING, "an unknown component advertises nvidia.com/gpu on 1 node", ("node/b",)),
    "an agent that sees no injection": (
        with_objects("GPUNode", sound.gpunode("gpu-1", DevicesInjected="False"), only=True),
        "device-injection", WARNING, "the agent reports: DevicesInjected is False", ("node/gpu-1",)),
    "a variable with an operator that uses CDI": (
        both(by_variable, with_objects("ClusterPolicy", policy())), "device-injection", BLOCKING, "ignores the environment variable", ("node/gpu-1", "node/gpu-2")),
    "a variable and an unknown runtime": (
        by_variable, "device-injection", UNKNOWN, "whether NVIDIA's runtime is the default on 2 nodes", ("node/gpu-1", "node/gpu-2")),
    "CDI with an old containerd": (
        both(without_gpunodes, with_objects("Node", node("c", containerRuntimeVersion="containerd://1.6.20"))),
        "device-injection", WARNING, "a containerd older than 1.7, which ignores CDI", ("node/c",)),
    "CDI with containerd 1.7": (
        both(without_gpunodes, with_objects("Node", node("c", containerRuntimeVersion="containerd://1.7.2"))),
        "device-injection", UNKNOWN, "supports CDI only if enable_cdi", ("node/c",)),
    "CDI without the component": (without_volume, "device-injection", BLOCKING, "does not mount the directory", ()),
    "a missing RuntimeClass": (
        both(without_gpunodes, agent_is(runtimeClassName="nvidia")), "device-injection", BLOCKING, "the RuntimeClass nvidia, which does not exist", ()),
    "a toolkit that accepts the variable": (
        with_objects("ClusterPolicy", policy()), "visible-devices", WARNING, "to any image with NVIDIA_VISIBLE_DEVICES=all", ("clusterpolicy/cluster-policy",)),
    "a toolkit that ignores the variable": (
        both(by_variable, with_objects("ClusterPolicy", policy(toolkit={"env": [{"name": ACCEPT, "value": "false"}]}))),
        "visible-devices", BLOCKING, "only from privileged pods", ("clusterpolicy/cluster-policy",)),
    "an old driver": (
        nodes(node("o", labels={"nvidia.com/cuda.driver-version.full": "470.82.01"})), "driver", BLOCKING, "older than 520 (470.82.1)", ("node/o",)),
    "an unknown driver version": (
        with_objects("Node", named("Node", "n", labels={facts_of_cluster.GPU_PRESENT: "true"})), "driver", UNKNOWN, "without a label for the driver's version", ("node/n",)),
    "a driver that can limit memory": (
        with_objects("Node", node("n", labels={"nvidia.com/cuda.driver-version.full": "615.10"}, kernelVersion="6.14.2")),
        "driver", INFO, "can enforce device memory limits", ("node/n",)),
    "HAMi": (
        with_objects("DaemonSet", daemonset("hami-device-plugin", "kube-system", nodeSelector={facts_of_cluster.GPU_PRESENT: "true"})),
        "other-sharers", BLOCKING, "HAMi (daemonset kube-system/hami-device-plugin) runs on 2 of", ("node/gpu-1", "node/gpu-2")),
    "HAMi elsewhere": (
        with_objects("DaemonSet", daemonset("hami-device-plugin", "kube-system", nodeSelector={"gpu": "on"})), "other-sharers", INFO, "on none of", ()),
    "Alibaba's gpushare": (
        with_objects("DaemonSet", daemonset("gpushare-device-plugin-ds", "kube-system")), "other-sharers", BLOCKING, "Alibaba's gpushare", ("node/gpu-1", "node/gpu-2")),
    "KAI": (setting(groups=frozenset({"kai.scheduler"})), "other-sharers", WARNING, "KAI-Scheduler is installed", ()),
    "a group without its DaemonSet": (
        setting(groups=frozenset({"tensor-fusion.ai"})), "other-sharers", INFO, "tensor-fusion.ai of TensorFusion", ()),
    "DRA": (with_objects("DeviceClass", named("DeviceClass", "gpu.nvidia.com")), "dra-driver", WARNING, "by the DeviceClass gpu.nvidia.com", ("deviceclass/gpu.nvidia.com",)),
    "a MIG manager": (with_objects("DaemonSet", daemonset("nvidia-mig-manager", "gpu-operator")), "mig-writers", WARNING, "MIG manager", ("node/gpu-1", "node/gpu-2")),
    "two MIG managers": (
        both(agent_is(containers=[{"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]), with_objects("DaemonSet", daemonset("nvidia-mig-manager", "gpu-operator"))),
        "mig-writers", BLOCKING, "may partition GPUs there too", ("node/gpu-1", "node/gpu-2")),
    "partitioned GPUs": (with_objects("Node", {**node("cut"), **CUT}), "mig-off", WARNING, "1 node whose GPUs are partitioned by MIG", ("node/cut",)),
    "an operator that is not ready": (
        with_objects("ClusterPolicy", {**policy(), "status": {"state": "notReady"}}), "gpu-operator", WARNING, "its state is notReady", ("clusterpolicy/cluster-policy",)),
    "Kueue": (setting(groups=frozenset({"kueue.x-k8s.io"})), "kueue", INFO, "Kueue is installed", ()),
    "gVisor": (with_objects("RuntimeClass", named("RuntimeClass", "sandbox", handler="runsc")), "sandboxes", INFO, "sandbox (gVisor)", ("runtimeclass/sandbox",)),
    "a webhook that is not ready": (
        with_objects("Deployment", named("Deployment", facts_of_cluster.WEBHOOK, sound.SYSTEM, spec={"replicas": 2}, status={}), only=True),
        "webhook-ready", BLOCKING, "0 of 2 replicas", (f"deployment/{facts_of_cluster.WEBHOOK}",)),
    "a webhook scaled to zero": (
        with_objects("Deployment", named("Deployment", facts_of_cluster.WEBHOOK, sound.SYSTEM, spec={"replicas": 0}, status={}), only=True),
        "webhook-ready", BLOCKING, "the webhook is scaled to zero replicas", (f"deployment/{facts_of_cluster.WEBHOOK}",)),
    "a webhook whose new replica does not start": (
        both(
            with_objects("Deployment", named("Deployment", facts_of_cluster.WEBHOOK, sound.SYSTEM, spec={"replicas": 2}, status={"readyReplicas": 2}), only=True),
            with_objects("Pod", pod("new", sound.SYSTEM, "gpu-1", component="webhook", ready=False, status=CRASHED))),
        "webhook-ready", WARNING, "2 of 2 replicas of the webhook are ready, but a new one is not: CrashLoopBackOff: back-off 10s: no driver",
        (f"deployment/{facts_of_cluster.WEBHOOK}",)),
    "a webhook with one replica ready": (
        with_objects("Deployment", named("Deployment", facts_of_cluster.WEBHOOK, sound.SYSTEM, spec={"replicas": 2}, status={"readyReplicas": 1}), only=True),
        "webhook-ready", WARNING, "1 of 2 replicas", (f"deployment/{facts_of_cluster.WEBHOOK}",)),
    "no Deployment": (with_objects("Deployment", only=True), "webhook-ready", BLOCKING, "there is no Deployment", ()),
    "no certificate": (
        with_objects("MutatingWebhookConfiguration", named("MutatingWebhookConfiguration", "gpushare", webhooks=[{"clientConfig": {}}]), only=True),
        "webhook-trusted", BLOCKING, "its caBundle is empty", ("mutatingwebhookconfiguration/gpushare",)),
    "no configuration of the webhook": (
        with_objects("MutatingWebhookConfiguration", only=True), "webhook-trusted", BLOCKING, "there is no MutatingWebhookConfiguration", ("mutatingwebhookconfiguration/gpushare",)),
    "a webhook behind a firewall": (
        refused(failed("context deadline exceeded")), "webhook-reached", BLOCKING, "cannot reach the webhook", ("mutatingwebhookconfiguration/gpushare",)),
    "a webhook without endpoints": (
        refused(failed('no endpoints available for service "gpushare-webhook"')), "webhook-reached", BLOCKING, "no replica of the webhook is ready", ("mutatingwebhookconfiguration/gpushare",)),
    "a webhook that is not trusted": (
        refused(failed("tls: x509: certificate signed by unknown authority")), "webhook-reached", BLOCKING, "does not trust", ("mutatingwebhookconfiguration/gpushare",)),
    "a webhook that rejects the pod": (
        refused('Forbidden: admission webhook "pods.gpushare.io" denied the request: not yet'), "webhook-reached", INFO, "the webhook answers", ()),
    "a policy without a webhook": (
        refused("Forbidden: ValidatingAdmissionPolicy 'gpushare-pods' denied request"), "webhook-reached", BLOCKING, "the webhook was not called", ()),
    "a pod that no webhook reviews": (setting(trial=Trial({"metadata": {"annotations": {}}})), "webhook-reached", BLOCKING, "admitted unchanged", ()),
    "a quota that rejects the test pod": (refused("Forbidden: exceeded quota"), "webhook-reached", UNKNOWN, "was not accepted", ()),
    "a policy without a binding": (
        with_objects("ValidatingAdmissionPolicyBinding", *(named("ValidatingAdmissionPolicyBinding", name) for name in health_rules.BINDINGS[2:]), only=True),
        "policies", BLOCKING, "gpushare-agent, gpushare-bindings are missing",
        ("validatingadmissionpolicybinding/gpushare-agent", "validatingadmissionpolicybinding/gpushare-bindings")),
    "an agent that crashes": (
        with_objects("Pod", pod("a", sound.SYSTEM, "gpu-1", component="agent"), pod("b", sound.SYSTEM, "gpu-2", component="agent", ready=False, status=CRASHED), only=True),
        "agents-ready", WARNING, "no agent is ready on gpu-2: CrashLoopBackOff: back-off 10s: no driver", ("node/gpu-2",)),
    "no agent at all": (with_objects("Pod", only=True), "agents-ready", BLOCKING, "gpu-1, gpu-2: the DaemonSet has created no pod there", ("node/gpu-1", "node/gpu-2")),
    "an agent that does not tolerate a taint": (
        with_objects("Node", node("t", taints=({"key": "sku", "effect": "NoSchedule"},))), "agents-ready", WARNING, "no agent is ready on t: its taint sku:NoSchedule", ("node/t",)),
    "no DaemonSet": (with_objects("DaemonSet", only=True), "agents-ready", BLOCKING, "there is no DaemonSet", ()),
    "limits that are not enforced": (
        with_objects("GPUNode", sound.gpunode("gpu-1", LimitsInForce="False"), sound.gpunode("gpu-2"), only=True),
        "node-conditions", WARNING, "NotLimitsInForce: LimitsInForce is False", ("gpunode/gpu-1",)),
    "an agent without a report": (
        with_objects("GPUNode", sound.gpunode("gpu-1"), only=True), "node-conditions", WARNING, "no agent has reported gpu-2", ("node/gpu-2",)),
}  # fmt: skip

BEFORE: dict[str, tuple[Change, str, Severity, str, tuple[str, ...]]] = {
    "a missing right": (
        lambda facts: facts["rights"].update({"create daemonsets.apps": False}), "installer-rights", BLOCKING, "you may not create daemonsets.apps", ()),
    "an existing restricted namespace": (
        with_objects("Namespace", named("Namespace", sound.SYSTEM, labels={"pod-security.kubernetes.io/enforce": "baseline"})),
        "system-namespace", INFO, "sets it to privileged", (f"namespace/{sound.SYSTEM}",)),
    "GKE": (setting(version="v1.33.4-gke.1036000"), "webhook-network", WARNING, "GKE: on private nodes", ()),
    "EKS": (both(setting(version="v1.33.4-eks-1234"), with_objects("DaemonSet", daemonset("aws-node", "kube-system"))), "webhook-network", INFO, "security group", ()),
    "EKS with another network": (
        both(setting(version="v1.33.4-eks-1234"), with_objects("DaemonSet", daemonset("cilium", "kube-system"))), "webhook-network", WARNING, "EKS without the AWS CNI", ()),
    "images without a registry": (
        setting(plan=facts_of_cluster.from_manifests([sound.base("deviceplugin/daemonset.yaml")])), "images", BLOCKING, "localhost/gpushare/agent", ("node/gpu-1", "node/gpu-2")),
    "an image of the component defrag of no registry": (
        setting(plan=facts_of_cluster.from_manifests([*sound.ours(), *manifests.documents(DEFRAG)])), "images", BLOCKING, "localhost/gpushare/plugin", ("node/gpu-1", "node/gpu-2")),
    "unknown images": (setting(plan=InstallPlan()), "images", INFO, "are unknown", ()),
    "a GPU in use": (with_objects("Pod", pod("t", "ml", "gpu-1", **BUSY)), "gpus-in-use", WARNING, "GPUs of 1 node are held by 1 pod: ml/t", ("node/gpu-1",)),
}  # fmt: skip
