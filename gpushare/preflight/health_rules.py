"""Rules about an installed gpushare: whether its parts run and reach each other, and what the agents report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpushare import contract
from gpushare import node as objects
from gpushare.gpunode import Condition
from gpushare.preflight.facts_of_cluster import AGENT, WEBHOOK, ClusterFacts, Json, at, entries
from gpushare.preflight.finding import Finding, RulePhase, Severity, listed, names, rule
from gpushare.syntaxes.translation import SYNTAXES

_SYSTEM = contract.SYSTEM_NAMESPACE
_CONFIGURATION = contract.WEBHOOK_CONFIGURATION
_COMPONENT = "app.kubernetes.io/component"
BINDINGS: Final = (
    "gpushare-agent",
    "gpushare-bindings",
    "gpushare-events",
    "gpushare-namespaces",
    "gpushare-placed",
    "gpushare-pods",
    *(f"gpushare-translated-{name}" for name in SYNTAXES),
    "gpushare-webhook",
)
_APPLY = "kubectl apply --server-side --kustomize config/default"

_SHOW_PODS = f"kubectl --namespace {_SYSTEM} get pods,endpointslices"
_RESTART = f"kubectl --namespace {_SYSTEM} rollout restart deployment/{WEBHOOK}"

# Parts of the API server's message if the webhook does not answer, each with its meaning and remedy.
_CALL_FAILURES: Final = (
    ("no endpoints available", "no replica of the webhook is ready", "check its pods and endpoints", _SHOW_PODS),
    (
        "x509",
        "the API server does not trust the webhook's certificate",
        "a replica repairs the caBundle within a minute; if it does not, restart it, and stop any GitOps tool "
        "from overwriting it",
        _RESTART,
    ),
    ("not found", "the webhook's Service does not exist", "install again", "./install.sh"),
    ("refused", "nothing listens on the Service's endpoints", "check whether the webhook runs", _SHOW_PODS),
    (
        "",
        "the API server cannot reach the webhook",
        "open port 8443 of the webhook's pods to the control plane: firewall of the nodes, security group, "
        "NetworkPolicy",
        _SHOW_PODS,
    ),
)


def _missing(sentence: str, *subjects: str, remedy: str = "install it again") -> Finding:
    return Finding(Severity.BLOCKING, sentence, subjects, remedy, ("./install.sh",))


def conditions(gpunode: Json) -> tuple[Condition, ...]:
    """Return the conditions of a GPUNode."""
    return tuple(
        Condition(*(str(entry.get(key) or "") for key in ("type", "status", "reason", "message")))
        for entry in entries(gpunode, "status", "conditions")
    )


def condition(facts: ClusterFacts, node: str, kind: str) -> Condition | None:
    """Return a condition of a node's GPUNode; None if absent or unreadable."""
    for gpunode in facts.known(contract.GPUNODE_KIND):
        if objects.name(gpunode) == node:
            return next((said for said in conditions(gpunode) if said.type == kind), None)
    return None


def is_installed(facts: ClusterFacts) -> bool:
    """Whether any part of gpushare exists; also true if that could not be read."""
    if not {"Deployment", "DaemonSet", "MutatingWebhookConfiguration"} <= facts.objects.keys():
        return True
    workloads = facts.system_named("Deployment", WEBHOOK), facts.system_named("DaemonSet", AGENT)
    return any(workloads) or _configuration(facts) is not None


@rule(
    "installed",
    "gpushare is installed",
    "without it the annotations have no effect: pods get no GPU and no message",
    RulePhase.AFTER,
)
def _installed(facts: ClusterFacts) -> Iterator[Finding]:
    if not is_installed(facts):
        sentence = f"gpushare is not installed: no workload in {_SYSTEM}, no MutatingWebhookConfiguration"
        yield _missing(sentence, remedy="install it")


@rule(
    "webhook-ready",
    "all replicas of the webhook are ready",
    "while none is ready, pods that ask for a share are rejected; other pods are not affected",
    RulePhase.INSTALLED,
)
def _webhook(facts: ClusterFacts) -> Iterator[Finding]:
    deployment = facts.system_named("Deployment", WEBHOOK)
    if deployment is None:
        yield _missing(f"there is no Deployment {WEBHOOK} in {_SYSTEM}")
        return
    replicas = at(deployment, "spec", "replicas")
    if replicas == 0:
        scale = f"kubectl --namespace {_SYSTEM} scale deployment/{WEBHOOK} --replicas=2"
        sentence = "the webhook is scaled to zero replicas"
        yield Finding(Severity.BLOCKING, sentence, (f"deployment/{WEBHOOK}",), "scale it up again", (scale,))
        return
    wanted = int(replicas or 1)
    ready = int(at(deployment, "status", "readyReplicas") or 0)
    pods = _of_component(facts, "webhook") if "Pod" in facts.objects else ()
    reasons = "; ".join(sorted({reason for pod in pods if (reason := why_not_ready(pod))}))
    if ready < wanted or reasons:  # a new replica that should replace one of them may not start
        more = "" if ready < wanted else ", but a new one is not"
        severity = Severity.BLOCKING if not ready else Severity.WARNING
        found = f"{ready} of {wanted} replicas of the webhook are ready{more}{': ' * bool(reasons)}{reasons}"
        remedy = "read their logs"
        command = f"kubectl --namespace {_SYSTEM} logs deployment/{WEBHOOK} --all-pods --tail=20"
        yield Finding(severity, found, (f"deployment/{WEBHOOK}",), remedy, (command,))


@rule(
    "agents-ready",
    "an agent is ready on every node with GPUs",
    "shares are placed only on nodes with an agent, and containers need its arbiter",
    RulePhase.INSTALLED,
)
def _agents(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.system_named("DaemonSet", AGENT) is None:
        yield _missing(f"there is no DaemonSet {AGENT} in {_SYSTEM}")
        return
    chosen = facts.gpu_nodes()
    pods = {str(at(pod, "spec", "nodeName") or ""): pod for pod in _of_component(facts, "agent")}
    trouble: dict[str, list[str]] = {}
    for item in chosen:
        if (pod := pods.get(objects.name(item))) is not None:
            reason = why_not_ready(pod)
        elif (taint := facts.plan.agent.repelled(item)) is not None:
            reason = f"its taint {taint} is not tolerated"
        else:
            reason = "the DaemonSet has created no pod there"
        if reason:
            trouble.setdefault(reason, []).append(objects.name(item))
    ill = sum(map(len, trouble.values()))
    for reason, concerned in trouble.items():
        severity = Severity.BLOCKING if ill == len(chosen) else Severity.WARNING
        found = f"no agent is ready on {listed(concerned)}: {reason}"
        remedy = "describe the pod"
        command = f"kubectl --namespace {_SYSTEM} describe pods --selector {_COMPONENT}=agent"
        yield Finding(severity, found, tuple(f"node/{name}" for name in concerned), remedy, (command,))


def why_not_ready(pod: Json) -> str:
    """Return why a pod is not ready, in the kubelet's or the scheduler's words; empty if it is."""
    said = {str(entry.get("type")): entry for entry in entries(pod, "status", "conditions")}
    if at(said.get("Ready"), "status") == "True":
        return ""
    for entry in (*entries(pod, "status", "initContainerStatuses"), *entries(pod, "status", "containerStatuses")):
        waiting = at(entry, "state", "waiting") or {}
        ended = at(entry, "lastState", "terminated") or at(entry, "state", "terminated") or {}
        if waiting.get("reason") not in {None, "ContainerCreating", "PodInitializing"}:
            words = [str(waiting["reason"]), str(waiting.get("message") or "")]
            words += [str(ended.get("message") or "")] if ended else []
            return ": ".join(word.strip() for word in words if word.strip())
    scheduled = said.get("PodScheduled") or {}
    if scheduled.get("status") == "False":
        return str(scheduled.get("message") or scheduled.get("reason") or "it is not scheduled")
    phase = str(at(pod, "status", "reason") or at(pod, "status", "phase") or "")
    return str(at(said.get("Ready"), "message") or f"it is {phase or 'not started yet'}")


def _of_component(facts: ClusterFacts, component: str) -> Iterator[Json]:
    return (pod for pod in facts.system("Pod") if objects.labels(pod).get(_COMPONENT) == component)


@rule(
    "webhook-trusted",
    "the API server trusts the webhook's certificate",
    "the API server calls only registered webhooks whose certificate it trusts",
    RulePhase.INSTALLED,
)
def _trusted(facts: ClusterFacts) -> Iterator[Finding]:
    ours = _configuration(facts)
    subject = (f"mutatingwebhookconfiguration/{_CONFIGURATION}",)
    if ours is None:
        sentence = "there is no MutatingWebhookConfiguration of gpushare: every pod that asks for a share is rejected"
        yield _missing(sentence, *subject)
    elif not all(at(entry, "clientConfig", "caBundle") for entry in entries(ours, "webhooks")):
        found = "its caBundle is empty: the API server trusts no webhook"
        remedy = "the webhook writes it when it starts; read its logs"
        command = f"kubectl --namespace {_SYSTEM} logs deployment/{WEBHOOK} --all-pods --tail=20"
        yield Finding(Severity.BLOCKING, found, subject, remedy, (command,))


def _configuration(facts: ClusterFacts) -> Json | None:
    configurations = facts.of("MutatingWebhookConfiguration")
    return next((item for item in configurations if objects.name(item) == _CONFIGURATION), None)


@rule(
    "webhook-reached",
    "the API server reaches the webhook",
    "the webhook fails closed: without it, pods that ask for a share do not start",
    RulePhase.INSTALLED,
)
def _reached(facts: ClusterFacts) -> Iterator[Finding]:
    trial = facts.fact(facts.trial, "trial")
    if trial.pod is not None:
        annotations = at(trial.pod, "metadata", "annotations") or {}
        if not {contract.ALLOCATION, contract.REASON} & set(annotations):
            yield _missing("a pod that requests a share was admitted unchanged: nothing of gpushare reviews pods")
    elif "failed calling webhook" in trial.refusal and contract.WEBHOOK_NAME in trial.refusal:
        meaning, remedy, command = next(row[1:] for row in _CALL_FAILURES if row[0] in trial.refusal)
        found = f"{meaning}: {trial.refusal}"
        yield Finding(Severity.BLOCKING, found, (f"mutatingwebhookconfiguration/{_CONFIGURATION}",), remedy, (command,))
    elif f'"{contract.WEBHOOK_NAME}" denied' in trial.refusal:
        yield Finding(Severity.INFO, f"the webhook answers, but would grant no share now: {trial.refusal}")
    elif "gpushare-pods" in trial.refusal:
        yield _missing(f"the webhook was not called, so the policy rejected a pod with a share: {trial.refusal}")
    else:
        found = f"a test pod with a share was not accepted: {trial.refusal}"
        remedy = "name a namespace in which you may create pods"
        yield Finding(Severity.UNKNOWN, found, (), remedy, ("kubectl gpushare check --namespace NAME",))


@rule(
    "policies",
    "the policies are in force",
    "the API server itself rejects forged shares, even while the webhook is down",
    RulePhase.INSTALLED,
)
def _policies(facts: ClusterFacts) -> Iterator[Finding]:
    there = {objects.name(binding) for binding in facts.of("ValidatingAdmissionPolicyBinding")}
    missing = [name for name in BINDINGS if name not in there]
    if missing:
        found = f"the policy bindings {listed(missing)} are missing: users can forge shares"
        where = tuple(f"validatingadmissionpolicybinding/{name}" for name in missing)
        yield Finding(Severity.BLOCKING, found, where, "install them again", (_APPLY,))


@rule(
    "node-conditions",
    "the agents report no problem",
    "each agent checks its own node, and sees more there than the API server does",
    RulePhase.INSTALLED,
)
def _conditions(facts: ClusterFacts) -> Iterator[Finding]:
    chosen = {objects.name(node) for node in facts.known("Node") if facts.plan.agent.selects(node)}
    there = facts.of(contract.GPUNODE_KIND)
    for item in there:
        for said in conditions(item):
            if said.trouble:
                sentence = f"{said.trouble}: {said.message or said.reason or 'its agent gives no reason'}"
                remedy = "docs/operations.md explains each condition and what to do about it"
                command = f"kubectl describe gpunode {names([objects.name(item)], 'NAME')}"
                yield Finding(Severity.WARNING, sentence, (f"gpunode/{objects.name(item)}",), remedy, (command,))
    silent = sorted(chosen - {objects.name(item) for item in there})
    if silent:
        found = f"no agent has reported {listed(silent)} yet"
        remedy = "check whether it runs there"
        command = f"kubectl --namespace {_SYSTEM} get pods -o wide"
        yield Finding(Severity.WARNING, found, tuple(f"node/{name}" for name in silent), remedy, (command,))


RULES: Final = (_installed, _webhook, _trusted, _reached, _policies, _agents, _conditions)
