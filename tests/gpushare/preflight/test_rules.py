"""Each precondition, kept and broken; and that nothing that could not be read passes for fine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from gpushare import contract
from gpushare.preflight import devices, facts_of_cluster, health_rules, install_plan, rules
from gpushare.preflight.facts_of_cluster import ClusterFacts, Trial
from gpushare.preflight.finding import Finding, RulePhase, Severity
from gpushare.preflight.install_plan import InstallPlan
from gpushare.preflight.workload import Workload
from tests.config import manifests
from tests.gpushare.preflight import sound
from tests.gpushare.preflight.sound import daemonset, named, node, pod

Change = Callable[[dict[str, Any]], None]
BLOCKING, WARNING, UNKNOWN, INFO = Severity.BLOCKING, Severity.WARNING, Severity.UNKNOWN, Severity.INFO
GKE = {"apiVersion": "v1", "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["system-node-critical"]}]}}  # fmt: skip
POLICY = {"spec": {"cdi": {"enabled": True}, "toolkit": {"env": []}}, "status": {"state": "ready"}}
ACCEPT = "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED"


def of(found: ClusterFacts, rule: str) -> list[Finding]:
    return [one for one in rules.check(found) if one.rule == rule]


def having(kind: str, *more: dict[str, Any], only: bool = False) -> Change:
    """The cluster with these objects too; or with no others of their kind."""

    def change(given: dict[str, Any]) -> None:
        given["objects"][kind] = more if only else (*given["objects"][kind], *more)

    return change


def setting(**values: Any) -> Change:
    return lambda given: given.update(values)


def nodes(*found: dict[str, Any]) -> Change:
    return having("Node", *found, only=True)


def both(*changes: Change) -> Change:
    def change(given: dict[str, Any]) -> None:
        for change in changes:
            change(given)

    return change


def by_variable(given: dict[str, Any]) -> None:
    """Devices are named by a variable, no agent has said anything yet."""
    given["plan"] = dataclasses.replace(given["plan"], configurations={"default": "version: v1"})
    given["objects"]["GPUNode"] = ()


def without_agents_word(given: dict[str, Any]) -> None:
    given["objects"]["GPUNode"] = ()


def without_volume(given: dict[str, Any]) -> None:
    without_agents_word(given)
    given["plan"] = dataclasses.replace(given["plan"], agent=Workload({"volumes": []}))


def agent_is(**more: Any) -> Change:
    def change(given: dict[str, Any]) -> None:
        given["plan"] = dataclasses.replace(given["plan"], agent=Workload({**given["plan"].agent.pod, **more}))

    return change


def refused(words: str) -> Change:
    return setting(trial=Trial(None, words))


def policy(**spec: Any) -> dict[str, Any]:
    return named("ClusterPolicy", "cluster-policy", spec={**POLICY["spec"], **spec}, status=POLICY["status"])


def failed(words: str) -> str:
    return f'InternalError: failed calling webhook "pods.gpushare.io": {words}'


BUSY = {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
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

# what is broken → rule, how bad it is then, a part of the sentence, and whom it concerns
BROKEN: dict[str, tuple[Change, str, Severity, str, tuple[str, ...]]] = {
    "Kubernetes too old": (setting(version="v1.29.9"), "kubernetes-version", BLOCKING, "needs 1.30 or newer", ()),
    "Kubernetes too new": (setting(version="v1.40.0-alpha"), "kubernetes-version", INFO, "1.30 to 1.37", ()),
    "Kubernetes of no version": (setting(version="main"), "kubernetes-version", UNKNOWN, "'main'", ()),
    "a restricted system namespace": (
        having("Namespace", named("Namespace", sound.SYSTEM, labels={"pod-security.kubernetes.io/enforce": "restricted"}), only=True),
        "system-namespace", BLOCKING, "restricted, which refuses the agent's pods", (f"namespace/{sound.SYSTEM}",)),
    "users without a standard": (
        having("Namespace", named("Namespace", "ml")), "user-namespaces", WARNING, "1 namespace without", ("namespace/ml",)),
    "users on OpenShift": (
        both(having("Namespace", named("Namespace", "ml")), setting(groups=frozenset({"security.openshift.io"}))),
        "user-namespaces", INFO, "security context constraints", ()),
    "a quota for critical pods": (
        having("ResourceQuota", named("ResourceQuota", "gcp", "kube-system", spec=GKE)),
        "critical-pods-quota", WARNING, "kube-system has a ResourceQuota for system-critical pods", (f"namespace/{sound.SYSTEM}",)),
    "a quota of CPU limits": (
        having("ResourceQuota", named("ResourceQuota", "q", sound.SYSTEM, spec={"hard": {"limits.cpu": "1"}})),
        "system-quota", WARNING, "q of gpushare-system has limits.cpu", (f"namespace/{sound.SYSTEM}",)),
    "a policy engine": (
        having("MutatingWebhookConfiguration", named("MutatingWebhookConfiguration", "kyverno-resource", webhooks=[])),
        "other-admission", INFO, "Kyverno judges pods", ("mutatingwebhookconfiguration/kyverno-resource",)),
    "a webhook over everything": (
        having("MutatingWebhookConfiguration", named("MutatingWebhookConfiguration", "other", webhooks=[{"rules": [{"apiGroups": [""], "resources": ["pods"]}]}])),
        "other-admission", INFO, "other fails closed for every pod", ("mutatingwebhookconfiguration/other",)),
    "no label": (
        nodes(named("Node", "cpu-1")), "gpu-nodes-labelled", WARNING, "no node has a label that the agent goes by", ()),
    "a GPU without a label": (
        having("Node", named("Node", "gke", labels={"cloud.google.com/gke-accelerator": "nvidia-l4"})),
        "gpu-nodes-labelled", WARNING, "1 node with GPUs that the agent does not choose", ("node/gke",)),
    "a taint on one node": (
        having("Node", node("gpu-3", taints=({"key": "sku", "value": "gpu", "effect": "NoSchedule"},))),
        "node-taints", WARNING, "1 node with the taint sku=gpu:NoSchedule", ("node/gpu-3",)),
    "a taint on all nodes": (
        nodes(node("gpu-3", taints=({"key": "sku", "value": "gpu", "effect": "NoSchedule"},))),
        "node-taints", BLOCKING, "1 node with the taint sku=gpu:NoSchedule", ("node/gpu-3",)),
    "nodes with GPUs that attract any pod": (
        having("Node", named("Node", "cpu-1")), "pods-without-gpus", INFO, "2 nodes with GPUs and no taint", ("node/gpu-1", "node/gpu-2")),
    "a node that is not Ready": (
        having("Node", named("Node", "gpu-3", labels={install_plan.GPU_PRESENT: "true"}, status={"conditions": [{"type": "Ready", "status": "Unknown"}]})),
        "node-ready", WARNING, "1 node that are not Ready", ("node/gpu-3",)),
    "Windows": (having("Node", node("win", operatingSystem="windows")), "node-system", WARNING, "1 node with windows", ("node/win",)),
    "s390x": (having("Node", node("z", architecture="s390x")), "node-system", WARNING, "architecture s390x", ("node/z",)),
    "MicroK8s": (
        nodes(node("m", labels={"microk8s.io/cluster": "true"})), "kubelet-root", BLOCKING, "/var/snap/microk8s/common", ("node/m",)),
    "k0s": (having("Node", node("k", kubeletVersion="v1.36.2+k0s")), "kubelet-root", WARNING, "/var/lib/k0s/kubelet", ("node/k",)),
    "Docker": (having("Node", node("d", containerRuntimeVersion="docker://27.1")), "container-runtime", WARNING, "docker://27.1", ("node/d",)),
    "old containerd": (
        having("Node", node("c", containerRuntimeVersion="containerd://1.5.9")), "container-runtime", WARNING, "containerd 1.5.9", ("node/c",)),
    "a node that does not say its runtime": (
        having("Node", node("c", containerRuntimeVersion="")), "container-runtime", UNKNOWN, "do not say which", ("node/c",)),
    "an old kernel": (
        having("Node", node("k", kernelVersion="4.18.0-553.el8_10.x86_64")), "kernel", WARNING, "4.18.0-553.el8_10", ("node/k",)),
    "a vGPU": (having("Node", node("v", labels={"nvidia.com/vgpu.present": "true"})), "virtual-gpus", WARNING, "1 node whose GPUs are vGPUs", ("node/v",)),
    "the operator's device plugin": (
        having("DaemonSet", daemonset("nvidia-device-plugin-daemonset", "gpu-operator", nodeSelector={install_plan.GPU_PRESENT: "true"})),
        "gpu-owner", BLOCKING, "gives out the GPUs of 2 nodes", ("node/gpu-1", "node/gpu-2")),
    "a device plugin by its image": (
        having("DaemonSet", daemonset("dp", "kube-system", "nvcr.io/nvidia/k8s-device-plugin:v0.17.0")),
        "gpu-owner", BLOCKING, "NVIDIA's device plugin (daemonset kube-system/dp)", ("node/gpu-1", "node/gpu-2")),
    "somebody unknown": (
        both(without_agents_word, having("Node", {**node("b"), "status": {"allocatable": {"nvidia.com/gpu": "4"}}})),
        "gpu-owner", BLOCKING, "an unknown component advertises nvidia.com/gpu on 1 node", ("node/b",)),
    "an agent that sees no injection": (
        having("GPUNode", sound.gpunode("gpu-1", DevicesInjected="False"), only=True),
        "device-injection", WARNING, "the agent says: DevicesInjected is False", ("node/gpu-1",)),
    "a variable beside an operator with CDI": (
        both(by_variable, having("ClusterPolicy", policy())), "device-injection", BLOCKING, "by a variable, which is passed over", ("node/gpu-1", "node/gpu-2")),
    "a variable and no more known": (
        by_variable, "device-injection", UNKNOWN, "whether NVIDIA's runtime is the default one of 2 nodes", ("node/gpu-1", "node/gpu-2")),
    "CDI with an old containerd": (
        both(without_agents_word, having("Node", node("c", containerRuntimeVersion="containerd://1.6.20"))),
        "device-injection", WARNING, "a containerd older than 1.7, which passes over CDI", ("node/c",)),
    "CDI with containerd 1.7": (
        both(without_agents_word, having("Node", node("c", containerRuntimeVersion="containerd://1.7.2"))),
        "device-injection", UNKNOWN, "knows CDI only if enable_cdi", ("node/c",)),
    "CDI without the component": (without_volume, "device-injection", BLOCKING, "not given the directory", ()),
    "a RuntimeClass that is not there": (
        both(without_agents_word, agent_is(runtimeClassName="nvidia")), "device-injection", BLOCKING, "the RuntimeClass nvidia, and there is none", ()),
    "a toolkit that takes the variable": (
        having("ClusterPolicy", policy()), "visible-devices", WARNING, "from any pod", ("clusterpolicy/cluster-policy",)),
    "a toolkit that takes no variable": (
        both(by_variable, having("ClusterPolicy", policy(toolkit={"env": [{"name": ACCEPT, "value": "false"}]}))),
        "visible-devices", BLOCKING, "from privileged pods only", ("clusterpolicy/cluster-policy",)),
    "an old driver": (
        nodes(node("o", labels={"nvidia.com/cuda.driver-version.full": "470.82.01"})), "driver", BLOCKING, "older than 520 (470.82.1)", ("node/o",)),
    "a driver that is not told": (
        having("Node", named("Node", "n", labels={install_plan.GPU_PRESENT: "true"})), "driver", UNKNOWN, "do not tell the driver's version", ("node/n",)),
    "a driver that limits memory itself": (
        having("Node", node("n", labels={"nvidia.com/cuda.driver-version.full": "615.10"}, kernelVersion="6.14.2")),
        "driver", INFO, "can keep limits of device memory themselves", ("node/n",)),
    "HAMi": (
        having("DaemonSet", daemonset("hami-device-plugin", "kube-system", nodeSelector={install_plan.GPU_PRESENT: "true"})),
        "other-sharers", BLOCKING, "HAMi (daemonset kube-system/hami-device-plugin) runs on 2 of", ("node/gpu-1", "node/gpu-2")),
    "HAMi elsewhere": (
        having("DaemonSet", daemonset("hami-device-plugin", "kube-system", nodeSelector={"gpu": "on"})), "other-sharers", INFO, "on none of", ()),
    "Alibaba's gpushare": (
        having("DaemonSet", daemonset("gpushare-device-plugin-ds", "kube-system")), "other-sharers", BLOCKING, "Alibaba's gpushare", ("node/gpu-1", "node/gpu-2")),
    "KAI": (setting(groups=frozenset({"kai.scheduler"})), "other-sharers", WARNING, "KAI-Scheduler is there", ()),
    "a group without its DaemonSet": (
        setting(groups=frozenset({"tensor-fusion.ai"})), "other-sharers", INFO, "tensor-fusion.ai of TensorFusion", ()),
    "DRA": (having("DeviceClass", named("DeviceClass", "gpu.nvidia.com")), "dra-driver", WARNING, "by the DeviceClass gpu.nvidia.com", ("deviceclass/gpu.nvidia.com",)),
    "a MIG manager": (having("DaemonSet", daemonset("nvidia-mig-manager", "gpu-operator")), "mig-writers", WARNING, "MIG manager", ("node/gpu-1", "node/gpu-2")),
    "two that cut": (
        both(agent_is(containers=[{"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]), having("DaemonSet", daemonset("nvidia-mig-manager", "gpu-operator"))),
        "mig-writers", BLOCKING, "may cut GPUs there as well", ("node/gpu-1", "node/gpu-2")),
    "cut GPUs": (having("Node", {**node("cut"), **CUT}), "mig-off", WARNING, "1 node whose GPUs are cut by MIG", ("node/cut",)),
    "an operator at work": (
        having("ClusterPolicy", {**policy(), "status": {"state": "notReady"}}), "gpu-operator", WARNING, "its state is notReady", ("clusterpolicy/cluster-policy",)),
    "Kueue": (setting(groups=frozenset({"kueue.x-k8s.io"})), "kueue", INFO, "Kueue is there", ()),
    "gVisor": (having("RuntimeClass", named("RuntimeClass", "sandbox", handler="runsc")), "sandboxes", INFO, "sandbox is gVisor", ("runtimeclass/sandbox",)),
    "a webhook that is not ready": (
        having("Deployment", named("Deployment", install_plan.WEBHOOK, sound.SYSTEM, spec={"replicas": 2}, status={}), only=True),
        "webhook-ready", BLOCKING, "0 of 2 replicas", (f"deployment/{install_plan.WEBHOOK}",)),
    "a webhook that somebody has scaled away": (
        having("Deployment", named("Deployment", install_plan.WEBHOOK, sound.SYSTEM, spec={"replicas": 0}, status={}), only=True),
        "webhook-ready", BLOCKING, "the webhook is scaled to no replica", (f"deployment/{install_plan.WEBHOOK}",)),
    "a webhook whose new replica does not start": (
        both(
            having("Deployment", named("Deployment", install_plan.WEBHOOK, sound.SYSTEM, spec={"replicas": 2}, status={"readyReplicas": 2}), only=True),
            having("Pod", pod("new", sound.SYSTEM, "gpu-1", component="webhook", ready=False, status=CRASHED))),
        "webhook-ready", WARNING, "2 of 2 replicas of the webhook are ready, and one that is to follow is not: CrashLoopBackOff: back-off 10s: no driver",
        (f"deployment/{install_plan.WEBHOOK}",)),
    "half a webhook": (
        having("Deployment", named("Deployment", install_plan.WEBHOOK, sound.SYSTEM, spec={"replicas": 2}, status={"readyReplicas": 1}), only=True),
        "webhook-ready", WARNING, "1 of 2 replicas", (f"deployment/{install_plan.WEBHOOK}",)),
    "no Deployment": (having("Deployment", only=True), "webhook-ready", BLOCKING, "there is no Deployment", ()),
    "no certificate": (
        having("MutatingWebhookConfiguration", named("MutatingWebhookConfiguration", "gpushare", webhooks=[{"clientConfig": {}}]), only=True),
        "webhook-trusted", BLOCKING, "its caBundle is empty", ("mutatingwebhookconfiguration/gpushare",)),
    "no configuration of the webhook": (
        having("MutatingWebhookConfiguration", only=True), "webhook-trusted", BLOCKING, "there is no MutatingWebhookConfiguration", ("mutatingwebhookconfiguration/gpushare",)),
    "a webhook behind a firewall": (
        refused(failed("context deadline exceeded")), "webhook-reached", BLOCKING, "does not reach the webhook", ("mutatingwebhookconfiguration/gpushare",)),
    "a webhook without endpoints": (
        refused(failed('no endpoints available for service "gpushare-webhook"')), "webhook-reached", BLOCKING, "no replica of the webhook is ready", ("mutatingwebhookconfiguration/gpushare",)),
    "a webhook that is not trusted": (
        refused(failed("tls: x509: certificate signed by unknown authority")), "webhook-reached", BLOCKING, "does not trust", ("mutatingwebhookconfiguration/gpushare",)),
    "a webhook that says no": (
        refused('Forbidden: admission webhook "pods.gpushare.io" denied the request: not yet'), "webhook-reached", INFO, "the webhook answers", ()),
    "a policy without its webhook": (
        refused("Forbidden: ValidatingAdmissionPolicy 'gpushare-pods' denied request"), "webhook-reached", BLOCKING, "the webhook was not asked", ()),
    "a pod that nobody judges": (setting(trial=Trial({"metadata": {"annotations": {}}})), "webhook-reached", BLOCKING, "let in as it was", ()),
    "a quota in the way of the trial": (refused("Forbidden: exceeded quota"), "webhook-reached", UNKNOWN, "cannot be tried", ()),
    "a policy that is not bound": (
        having("ValidatingAdmissionPolicyBinding", *(named("ValidatingAdmissionPolicyBinding", f"gpushare-{name}") for name in ("events", "placed", "pods", "webhook")), only=True),
        "policies", BLOCKING, "gpushare-agent, gpushare-bindings are not there",
        ("validatingadmissionpolicybinding/gpushare-agent", "validatingadmissionpolicybinding/gpushare-bindings")),
    "an agent that crashes": (
        having("Pod", pod("a", sound.SYSTEM, "gpu-1", component="agent"), pod("b", sound.SYSTEM, "gpu-2", component="agent", ready=False, status=CRASHED), only=True),
        "agents-ready", WARNING, "no agent is ready on gpu-2: CrashLoopBackOff: back-off 10s: no driver", ("node/gpu-2",)),
    "no agent at all": (having("Pod", only=True), "agents-ready", BLOCKING, "gpu-1, gpu-2: the DaemonSet has made no pod there", ("node/gpu-1", "node/gpu-2")),
    "an agent that a taint keeps away": (
        having("Node", node("t", taints=({"key": "sku", "effect": "NoSchedule"},))), "agents-ready", WARNING, "no agent is ready on t: its taint sku:NoSchedule", ("node/t",)),
    "no DaemonSet": (having("DaemonSet", only=True), "agents-ready", BLOCKING, "there is no DaemonSet", ()),
    "limits that are not in force": (
        having("GPUNode", sound.gpunode("gpu-1", LimitsInForce="False"), sound.gpunode("gpu-2"), only=True),
        "node-conditions", WARNING, "NotLimitsInForce: LimitsInForce is False", ("gpunode/gpu-1",)),
    "an agent that has said nothing": (
        having("GPUNode", sound.gpunode("gpu-1"), only=True), "node-conditions", WARNING, "no agent has said anything of gpu-2", ("node/gpu-2",)),
}  # fmt: skip

BEFORE: dict[str, tuple[Change, str, Severity, str, tuple[str, ...]]] = {
    "a right too few": (
        lambda given: given["rights"].update({"create daemonsets.apps": False}), "installer-rights", BLOCKING, "you may not create daemonsets.apps", ()),
    "a restricted namespace that is there already": (
        having("Namespace", named("Namespace", sound.SYSTEM, labels={"pod-security.kubernetes.io/enforce": "baseline"})),
        "system-namespace", INFO, "sets it to privileged", (f"namespace/{sound.SYSTEM}",)),
    "GKE": (setting(version="v1.33.4-gke.1036000"), "webhook-network", WARNING, "GKE: with private nodes", ()),
    "EKS": (both(setting(version="v1.33.4-eks-1234"), having("DaemonSet", daemonset("aws-node", "kube-system"))), "webhook-network", INFO, "security group", ()),
    "EKS with another network": (
        both(setting(version="v1.33.4-eks-1234"), having("DaemonSet", daemonset("cilium", "kube-system"))), "webhook-network", WARNING, "EKS without the AWS CNI", ()),
    "images of no registry": (
        setting(plan=install_plan.of([sound.base("deviceplugin/daemonset.yaml")])), "images", BLOCKING, "localhost/gpushare/agent", ("node/gpu-1", "node/gpu-2")),
    "images that nobody named": (setting(plan=InstallPlan()), "images", INFO, "was not told", ()),
    "a GPU in use": (having("Pod", pod("t", "ml", "gpu-1", **BUSY)), "gpus-in-use", WARNING, "GPUs of 1 node are held by 1 pod: ml/t", ("node/gpu-1",)),
}  # fmt: skip


def test_a_sound_cluster_has_nothing_to_complain_of() -> None:
    for installing in (False, True):
        found = {one.rule: one for one in rules.check(sound.cluster_facts(installing=installing))}
        worse = {rule: one.found for rule, one in found.items() if one.severity is not Severity.OK}
        assert set(worse) == {"visible-devices"}, worse
        assert found["visible-devices"].severity is Severity.INFO


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_found_and_named_and_nothing_else_is_made_up(name: str) -> None:
    change, rule, severity, part, concerned = BROKEN[name]
    is_as_told(of(sound.cluster_facts(change), rule), severity, part, concerned)


@pytest.mark.parametrize("name", BEFORE)
def test_what_is_broken_before_an_installation_is_found(name: str) -> None:
    change, rule, severity, part, concerned = BEFORE[name]
    is_as_told(of(sound.cluster_facts(change, installing=True), rule), severity, part, concerned)


def is_as_told(found: list[Finding], severity: Severity, part: str, concerned: tuple[str, ...]) -> None:
    assert [item.severity for item in found] == [severity], found
    assert part in found[0].found
    assert found[0].subjects == concerned
    assert found[0].why
    if severity >= WARNING:
        assert found[0].remedy or found[0].commands


def test_every_rule_is_broken_by_some_story() -> None:
    assert {rule for _, rule, *_ in (*BROKEN.values(), *BEFORE.values())} | {"installed"} == {
        one.id for one in rules.RULES
    }


def test_without_gpushare_one_sentence_says_so() -> None:
    nothing = both(*(having(kind, only=True) for kind in ("Deployment", "DaemonSet", "MutatingWebhookConfiguration")))
    found = rules.check(sound.cluster_facts(nothing))
    assert [item.rule for item in found if item.severity is BLOCKING] == ["installed"]
    assert "webhook-ready" not in {item.rule for item in found}


def test_a_node_with_the_label_that_keeps_the_plugin_away_is_ours() -> None:
    """The operator's own way to give a node away, and the one that the remedy names."""
    operators = daemonset("nvidia-device-plugin-daemonset", "gpu-operator", nodeSelector={"nvidia.com/gpu.deploy.device-plugin": "true"})  # fmt: skip
    for value, concerned in (("true", ("node/gpu-3",)), ("false", ())):
        labelled = node("gpu-3", labels={"nvidia.com/gpu.deploy.device-plugin": value})
        found = of(sound.cluster_facts(both(having("DaemonSet", operators), having("Node", labelled))), "gpu-owner")
        assert found[0].subjects == concerned
    assert found[0].severity is Severity.OK


def test_an_image_that_every_node_has_needs_no_registry() -> None:
    images = [{"names": ["localhost/gpushare/agent:0.2.0", "localhost/gpushare/agent"]}]
    loaded = [{**node(name), "status": {**node(name)["status"], "images": images}} for name in ("gpu-1", "gpu-2")]
    told = setting(plan=install_plan.of([sound.base("deviceplugin/daemonset.yaml")]))
    assert of(sound.cluster_facts(both(told, nodes(*loaded)), installing=True), "images")[0].severity is Severity.OK
    half = both(told, nodes(loaded[0], node("gpu-2")))
    assert of(sound.cluster_facts(half, installing=True), "images")[0].subjects == ("node/gpu-2",)


@pytest.mark.parametrize(
    ("labels", "image", "cdi"),
    [({"app.kubernetes.io/version": "v25.10.1"}, "", True), ({"app.kubernetes.io/version": "v25.3.4"}, "", False),
     ({}, "nvcr.io/nvidia/gpu-operator:v26.7.0", True), ({}, "nvcr.io/nvidia/gpu-operator:v24.9.2", False), ({}, "", False)],
)  # fmt: skip
def test_an_operator_of_25_10_or_newer_uses_cdi_unless_it_says_otherwise(
    labels: dict[str, str], image: str, cdi: bool
) -> None:
    deployment = named("Deployment", "gpu-operator", "gpu-operator", spec={"template": {"spec": {"containers": [{"image": image}]}}})  # fmt: skip
    silent = named("ClusterPolicy", "p", labels=labels, spec={})
    for spec, expected in ({}, cdi), ({"cdi": {"enabled": not cdi}}, not cdi):
        told = {**silent, "spec": spec}
        found = sound.cluster_facts(
            both(having("ClusterPolicy", told), having("Deployment", *([deployment] if image else [])))
        )
        assert devices.operator_with_cdi(found) is expected


@pytest.mark.parametrize(
    ("arguments", "environment", "configuration", "expected"),
    [([], {}, "", {"envvar"}), (["--device-list-strategy=cdi-cri"], {}, "", {"cdi-cri"}),
     ([], {"DEVICE_LIST_STRATEGY": "envvar,cdi-annotations"}, "", {"envvar", "cdi-annotations"}),
     ([], {}, "flags:\n  plugin:\n    deviceListStrategy: [volume-mounts, cdi-cri]", {"volume-mounts", "cdi-cri"})],
)  # fmt: skip
def test_how_devices_are_named_is_read_where_an_agent_reads_it(
    arguments: list[str], environment: dict[str, str], configuration: str, expected: set[str]
) -> None:
    container = {"args": arguments, "env": [{"name": key, "value": value} for key, value in environment.items()]}
    assert (
        devices.strategies(InstallPlan(Workload({"containers": [container]}), configurations={"a": configuration}))
        == expected
    )


def test_the_default_plan_is_what_the_manifests_say() -> None:
    agent = Workload.of(sound.base("deviceplugin/daemonset.yaml"))
    default = InstallPlan().agent
    for key in ("tolerations", "affinity"):
        assert default.pod[key] == agent.pod[key]
    assert (
        default.host_path(install_plan.KUBELET_VOLUME)
        == agent.host_path(install_plan.KUBELET_VOLUME)
        == install_plan.KUBELET_DIRECTORY
    )
    assert {one["metadata"]["name"] for one in manifests.objects() if one["kind"] == "ValidatingAdmissionPolicyBinding" and "Deny" in one["spec"]["validationActions"]} == {*health_rules.BINDINGS}  # fmt: skip


@pytest.mark.parametrize("kind", [*facts_of_cluster.KINDS, "version", "groups", "rights", "trial"])
@pytest.mark.parametrize("installing", [False, True])
def test_what_may_not_be_read_is_said_with_the_reason_and_never_fine(kind: str, installing: bool) -> None:
    def hide(given: dict[str, Any]) -> None:
        given["unread"] = {kind: "you may not"}
        if kind in facts_of_cluster.KINDS:
            del given["objects"][kind]
        else:
            given[kind] = None

    whole = {one.rule for one in rules.check(sound.cluster_facts(installing=installing)) if one.severity is Severity.OK}
    found = rules.check(sound.cluster_facts(hide, installing=installing))
    unknown = {item.rule for item in found if item.found == "not known: you may not"}
    assert all(item.severity is UNKNOWN for item in found if item.rule in unknown)
    assert unknown or kind in ADDING or (kind in ONLY_AFTER and installing) or (kind == "rights" and not installing)
    fine = {item.rule for item in found if item.severity is Severity.OK}
    assert fine <= whole - unknown


# Without these, what is said is not less certain, only less: or the plan, which is made of them, is told of instead.
ADDING = {"ConfigMap"}
ONLY_AFTER = {"Deployment", "ValidatingAdmissionPolicyBinding", contract.GPUNODE_KIND, "trial"}


@given(installing=some.booleans(), missing=some.sets(some.sampled_from(sorted(facts_of_cluster.KINDS))))
def test_every_rule_that_is_asked_says_something_whatever_is_known(installing: bool, missing: set[str]) -> None:
    def hide(given: dict[str, Any]) -> None:
        given["objects"] = {kind: one for kind, one in given["objects"].items() if kind not in missing}

    found = rules.check(sound.cluster_facts(hide, installing=installing))
    asked = {
        one.id
        for one in rules.RULES
        if one.phase in {RulePhase.ANY, RulePhase.BEFORE if installing else RulePhase.AFTER}
    }
    assert asked <= {item.rule for item in found}
    assert all(item.found and item.why for item in found)


def test_a_rule_has_one_id_and_says_what_it_wants_and_why() -> None:
    ids = [one.id for one in rules.RULES]
    assert len(ids) == len(set(ids))
    assert all(one.id.replace("-", "").islower() and one.wanted and one.why for one in rules.RULES)
