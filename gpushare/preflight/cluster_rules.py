"""Rules about the cluster as a whole: its version, permissions, namespaces, quotas, other webhooks, network, images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpushare import contract, versions
from gpushare import node as objects
from gpushare.preflight.facts_of_cluster import ClusterFacts, Json, at, entries, namespace
from gpushare.preflight.finding import Finding, RulePhase, Severity, counted, listed, names, rule

_SYSTEM = contract.SYSTEM_NAMESPACE
_ENFORCE = "pod-security.kubernetes.io/enforce"
_LIMITING: Final = frozenset({"baseline", "restricted"})
_CRITICAL: Final = frozenset({"system-node-critical", "system-cluster-critical"})
_POLICY_ENGINES: Final = {"kyverno": "Kyverno", "gatekeeper": "Gatekeeper", "kubewarden": "Kubewarden"}
_OPENSHIFT = "security.openshift.io"
_PORT = 8443  # of the webhook's pods

# The verbs and resources that an installation uses, as `kubectl auth can-i` takes them.
RIGHTS: Final = tuple(
    f"{verb} {resource}"
    for resource in (
        "namespaces",
        "customresourcedefinitions.apiextensions.k8s.io",
        "clusterroles.rbac.authorization.k8s.io",
        "clusterrolebindings.rbac.authorization.k8s.io",
        "roles.rbac.authorization.k8s.io",
        "rolebindings.rbac.authorization.k8s.io",
        "serviceaccounts",
        "secrets",
        "configmaps",
        "services",
        "deployments.apps",
        "daemonsets.apps",
        "poddisruptionbudgets.policy",
        "mutatingwebhookconfigurations.admissionregistration.k8s.io",
        "validatingadmissionpolicies.admissionregistration.k8s.io",
        "validatingadmissionpolicybindings.admissionregistration.k8s.io",
    )
    for verb in ("create", "patch")
)

# One line, because the output is indented.
_QUOTA = (
    "echo '"
    '{"apiVersion":"v1","kind":"ResourceQuota",'
    '"metadata":{"name":"gpushare-critical","namespace":"gpushare-system"},'
    '"spec":{"hard":{"pods":"10000"},"scopeSelector":{"matchExpressions":[{"scopeName":"PriorityClass","operator":"In",'
    '"values":["system-node-critical","system-cluster-critical"]}]}}}'
    "' | kubectl apply -f -"
)
_NAMESPACE = f"kubectl create namespace {_SYSTEM}"


@rule(
    "kubernetes-version",
    "Kubernetes is 1.30 to 1.37",
    "older versions have no ValidatingAdmissionPolicy, so users could write their own shares",
)
def _version(facts: ClusterFacts) -> Iterator[Finding]:
    text = facts.fact(facts.version, "version")
    version = versions.parse_version(text)[:2]
    oldest, newest = versions.MIN_KUBERNETES, versions.MAX_KUBERNETES
    if not version:
        yield Finding(
            Severity.UNKNOWN, f"the API server reports the unknown version {text!r}", (), "run kubectl version"
        )
    elif version < oldest:
        found = f"Kubernetes {text}, but gpushare needs {versions.format_version(oldest)} or newer"
        yield Finding(Severity.BLOCKING, found, (), "upgrade it")
    elif version > newest:
        supported = " to ".join(map(versions.format_version, (oldest, newest)))
        found = f"Kubernetes {text}; this release supports {supported}"
        yield Finding(Severity.INFO, found, (), "check for a newer release of gpushare")


@rule(
    "installer-rights",
    "you may create all objects of an installation",
    "an installation that stops halfway leaves the cluster with only some of the objects",
    RulePhase.BEFORE,
)
def _rights(facts: ClusterFacts) -> Iterator[Finding]:
    missing = [right for right, allowed in facts.fact(facts.rights, "rights").items() if not allowed]
    if missing:
        remedy = "install as a cluster administrator, or ask one to bind you to the role cluster-admin"
        command = "kubectl create clusterrolebinding gpushare-installer --clusterrole=cluster-admin --user=YOU"
        yield Finding(Severity.BLOCKING, f"you may not {listed(missing)}", (), remedy, (command,))


@rule(
    "system-namespace",
    f"{_SYSTEM} may have privileged pods",
    "the agent is a device plugin and needs host paths and the host's PID namespace",
)
def _system_namespace(facts: ClusterFacts) -> Iterator[Finding]:
    level = next((_level(item) for item in facts.of("Namespace") if objects.name(item) == _SYSTEM), "privileged")
    if level not in _LIMITING:
        return
    if facts.installing:
        sentence = f"{_SYSTEM} enforces {level} at present; the installation sets it to privileged"
        yield Finding(Severity.INFO, sentence, (f"namespace/{_SYSTEM}",))
    else:
        found = f"{_SYSTEM} enforces the Pod Security Standard {level}, which rejects the agent's pods"
        remedy = "allow privileged pods there, and let only administrators create pods in it"
        command = f"kubectl label namespace {_SYSTEM} --overwrite {_ENFORCE}=privileged"
        yield Finding(Severity.BLOCKING, found, (f"namespace/{_SYSTEM}",), remedy, (command,))


@rule(
    "user-namespaces",
    "a Pod Security Standard keeps users from privileged pods",
    "a privileged pod sees every GPU of its node, and a pod with host paths can change the agent's files",
)
def _user_namespaces(facts: ClusterFacts) -> Iterator[Finding]:
    busy = {namespace(item) for kind in ("DaemonSet", "Deployment") for item in facts.known(kind) if _is_system(item)}
    open_ones = [
        name
        for namespace in facts.of("Namespace")
        if (name := objects.name(namespace)) not in {_SYSTEM, *busy}
        and not name.startswith(("kube-", "openshift-"))
        and _level(namespace) not in _LIMITING
    ]
    if not open_ones:
        return
    if facts.groups is not None and _OPENSHIFT in facts.groups:
        found = "OpenShift's security context constraints decide who may run privileged pods; they are not checked"
        command = "oc adm policy who-can use scc privileged"
        yield Finding(Severity.INFO, found, (), "grant the SCC privileged to no user", (command,))
        return
    found = (
        f"{counted(open_ones, 'namespace')} without the Pod Security Standard baseline or restricted: "
        f"{listed(open_ones)}"
    )
    remedy = (
        "set one of them on every namespace whose users are not administrators, unless another admission "
        "controller rejects privileged pods"
    )
    command = f"kubectl label namespace {names(open_ones, 'NAME...')} {_ENFORCE}=baseline"
    yield Finding(Severity.WARNING, found, tuple(f"namespace/{name}" for name in open_ones), remedy, (command,))


def _is_system(workload: Json) -> bool:
    """Whether the namespace belongs to the system, whose pods need privileges themselves."""
    pod = at(workload, "spec", "template", "spec") or {}
    hosts = bool(pod.get("hostPID") or pod.get("hostNetwork"))
    return str(workload.get("kind") or "DaemonSet") == "DaemonSet" and (
        hosts or any(at(entry, "securityContext", "privileged") for entry in entries(pod, "containers"))
    )


def _level(manifest: Json) -> str:
    return objects.labels(manifest).get(_ENFORCE, "")


@rule(
    "critical-pods-quota",
    f"{_SYSTEM} may have pods of system priority",
    "webhook and agents run with system-cluster-critical and system-node-critical, so that they are not evicted",
)
def _critical_quota(facts: ClusterFacts) -> Iterator[Finding]:
    scoped = {
        namespace(quota)
        for quota in facts.of("ResourceQuota")
        for entry in entries(quota, "spec", "scopeSelector", "matchExpressions")
        if entry.get("scopeName") == "PriorityClass" and _CRITICAL & set(entry.get("values") or ())
    }
    there = any(objects.name(namespace) == _SYSTEM for namespace in facts.known("Namespace"))
    if scoped and _SYSTEM not in scoped:
        found = (
            f"{listed(sorted(scoped))} has a ResourceQuota for system-critical pods, and {_SYSTEM} has none: on "
            "clusters that limit these priorities to namespaces with such a quota, such as GKE, gpushare's pods are "
            "not created"
        )
        commands = (*([] if there else [_NAMESPACE]), _QUOTA)
        yield Finding(Severity.WARNING, found, (f"namespace/{_SYSTEM}",), "create one before you install", commands)


@rule("system-quota", f"no quota of {_SYSTEM} rejects its pods", "pods that a quota rejects are never created")
def _system_quota(facts: ClusterFacts) -> Iterator[Finding]:
    for quota in facts.system("ResourceQuota"):
        hard = at(quota, "spec", "hard") or {}
        if "limits.cpu" in hard:
            found = f"ResourceQuota {objects.name(quota)} of {_SYSTEM} has limits.cpu; gpushare's pods set no CPU limit"
            remedy = "remove limits.cpu from it, or give the namespace a LimitRange with a default"
            command = f"kubectl --namespace {_SYSTEM} edit resourcequota {names([objects.name(quota)], 'NAME')}"
            yield Finding(Severity.WARNING, found, (f"namespace/{_SYSTEM}",), remedy, (command,))


@rule(
    "other-admission",
    "no other admission controller blocks gpushare",
    "an admission controller can reject gpushare's pods, or block them while it is down",
)
def _other_admission(facts: ClusterFacts) -> Iterator[Finding]:
    for configuration in facts.of("MutatingWebhookConfiguration"):
        name = objects.name(configuration)
        engine = next((label for word, label in _POLICY_ENGINES.items() if word in name), "")
        if engine:
            found = f"{engine} validates pods: rules against host paths or capabilities would reject the agent's"
            remedy = f"exempt the namespace {_SYSTEM} from such rules"
            yield Finding(Severity.INFO, found, (f"mutatingwebhookconfiguration/{name}",), remedy)
        elif name != contract.WEBHOOK_CONFIGURATION and any(map(_blocks_our_pods, entries(configuration, "webhooks"))):
            found = f"{name} fails closed for every pod: while it is down, no pod of {_SYSTEM} can be recreated"
            remedy = f"exclude {_SYSTEM} in its namespaceSelector"
            yield Finding(Severity.INFO, found, (f"mutatingwebhookconfiguration/{name}",), remedy)


def _blocks_our_pods(hook: Json) -> bool:
    rules = entries(hook, "rules")
    pods = any("pods" in (rule.get("resources") or ()) and "" in (rule.get("apiGroups") or ()) for rule in rules)
    selected = at(hook, "namespaceSelector") or at(hook, "objectSelector") or at(hook, "matchConditions")
    return pods and (hook.get("failurePolicy") or "Fail") == "Fail" and not selected


@rule(
    "webhook-network",
    "the control plane is likely to reach the webhook",
    "pods that ask for a share are rejected while the API server cannot reach the webhook",
    RulePhase.BEFORE,
)
def _network(facts: ClusterFacts) -> Iterator[Finding]:
    version = facts.fact(facts.version, "version")
    plugins = {objects.name(daemon_set) for daemon_set in facts.known("DaemonSet")}
    if "-gke." in version:
        found = f"GKE: on private nodes the control plane reaches ports 443 and 10250, but not the webhook's {_PORT}"
        remedy = "if the nodes are private, open the port from the control plane's range to the nodes"
        command = (
            "gcloud compute firewall-rules create gpushare-webhook --direction INGRESS --network NETWORK "
            f"--source-ranges CONTROL_PLANE_RANGE --target-tags NODE_TAG --allow tcp:{_PORT}"
        )
        yield Finding(Severity.WARNING, found, (), remedy, (command,))
    elif "-eks-" in version and plugins and "aws-node" not in plugins:
        found = "EKS without the AWS CNI: the control plane cannot reach pods on an overlay network"
        remedy = (
            "let the webhook's pods use hostNetwork (a patch in a kustomization, or the chart's value), and open port "
            f"{_PORT} of the nodes to the cluster's security group"
        )
        yield Finding(Severity.WARNING, found, (), remedy)
    elif "-eks-" in version:
        found = f"EKS: the nodes' security group must admit the cluster's on port {_PORT}, as the default one does"
        yield Finding(Severity.INFO, found)


_WITH_MANIFESTS = "kubectl kustomize config/default | kubectl gpushare check --before-install -f -"
_NO_REGISTRY = "localhost/"  # image builders' registry for images without one


@rule("images", "the nodes can get the images", "a pod whose image cannot be pulled never starts", RulePhase.BEFORE)
def _images(facts: ClusterFacts) -> Iterator[Finding]:
    machines = facts.of("Node")
    if not facts.plan.is_known:
        sentence = "the images to install are unknown"
        yield Finding(Severity.INFO, sentence, (), "pass the manifests", (_WITH_MANIFESTS,))
        return
    anywhere = ((workload, machines) for workload in (facts.plan.webhook, facts.plan.defrag))
    parts = ((facts.plan.agent, facts.gpu_nodes() or machines), *anywhere)
    wrong: dict[str, tuple[str, ...]] = {}
    for workload, where in parts:
        for image in workload.images():
            if image and not image.startswith(_NO_REGISTRY):
                continue
            lacking = tuple(objects.name(item) for item in where if image not in _loaded(item))
            # Deployment and CronJob needs one node with the image, a DaemonSet needs it on all of its nodes.
            if not where or (lacking and workload is facts.plan.agent) or len(lacking) == len(where):
                wrong[image] = lacking
    if wrong:
        found = f"{listed(sorted(wrong))}: names without a registry"
        without = sorted({name for some in wrong.values() for name in some})
        if without:
            lack = "lacks" if len(without) == 1 else "lack"
            found += f", and {counted(without)} {lack} the images (a kubelet reports a new one within a minute)"
        nodes = tuple(f"node/{name}" for name in without)
        remedy = "push the images to a registry that the nodes can pull from, and name it"
        commands = ("make images PUSH=REGISTRY/PREFIX", "./install.sh --registry REGISTRY/PREFIX")
        yield Finding(Severity.BLOCKING, found, nodes, remedy, commands)


def _loaded(node: Json) -> frozenset[str]:
    """Return the images that the kubelet reports; it lists only the largest fifty."""
    return frozenset(str(name) for entry in entries(node, "status", "images") for name in entry.get("names") or ())


RULES: Final = (
    _version,
    _rights,
    _system_namespace,
    _user_namespaces,
    _critical_quota,
    _system_quota,
    _other_admission,
    _network,
    _images,
)
