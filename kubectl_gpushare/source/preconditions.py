"""Gathers the facts of a cluster for `check`.

Requests run at once, through one kubectl. `unread` says by kind why it could not be read, such as for lack of rights:
an unknown fact never counts as met.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from gpushare import contract
from gpushare.preflight import cluster_rules, devices, facts_of_cluster
from gpushare.preflight.facts_of_cluster import KINDS, ClusterFacts, Trial, namespace
from kubectl_gpushare import kubectl, plugin_errors
from kubectl_gpushare.source.live_cluster import LiveCluster

Json = dict[str, Any]

_ADMISSION = "admissionregistration.k8s.io"
# kind -> API group and path below it, with the version that the cluster prefers for V; the core group is empty.
_PATHS: Final[Mapping[str, tuple[str, str]]] = {
    "Node": ("", "/api/v1/nodes"),
    "Namespace": ("", "/api/v1/namespaces"),
    "Pod": ("", "/api/v1/pods?fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed"),
    "ResourceQuota": ("", "/api/v1/resourcequotas"),
    # The agent's arguments may name another than the usual one (--config-map).
    "ConfigMap": ("", f"/api/v1/namespaces/{contract.SYSTEM_NAMESPACE}/configmaps"),
    "DaemonSet": ("apps", "/apis/apps/v1/daemonsets"),
    "Deployment": ("apps", "/apis/apps/v1/deployments"),
    "RuntimeClass": ("node.k8s.io", "/apis/node.k8s.io/V/runtimeclasses"),
    "MutatingWebhookConfiguration": (_ADMISSION, f"/apis/{_ADMISSION}/v1/mutatingwebhookconfigurations"),
    "ValidatingAdmissionPolicyBinding": (_ADMISSION, f"/apis/{_ADMISSION}/v1/validatingadmissionpolicybindings"),
    "DeviceClass": ("resource.k8s.io", "/apis/resource.k8s.io/V/deviceclasses"),
    "ClusterPolicy": ("nvidia.com", "/apis/nvidia.com/v1/clusterpolicies"),
    contract.GPUNODE_KIND: (contract.GROUP_NAME, contract.GPUNODE_PATH),
}


def of_cluster(
    program: kubectl.Kubectl, manifests: Iterable[Json] = (), *, installing: bool, namespace_of_trial: str
) -> ClusterFacts:
    # The first request decides whether there is a cluster at all; any other may be forbidden.
    version = str(LiveCluster(program).document("/version").get("gitVersion") or "")
    with program.proxied() as proxy:
        return _gathered(proxy, version, manifests, installing=installing, namespace_of_trial=namespace_of_trial)


def _gathered(
    proxy: kubectl.Proxy, version: str, manifests: Iterable[Json], *, installing: bool, namespace_of_trial: str
) -> ClusterFacts:
    unread: dict[str, str] = {}
    groups = _groups(proxy, unread)
    begun = {
        kind: proxy.get(path.replace("/V/", f"/{groups[group]}/"))
        for kind, (group, path) in _PATHS.items()
        if group in groups
    }
    pods = f"/api/v1/namespaces/{namespace_of_trial}/pods?dryRun=All"
    trial = None if installing else proxy.post(pods, json.dumps(_probe()))
    objects: dict[str, tuple[Json, ...]] = {kind: () for kind in _PATHS if kind not in begun}
    for kind, answer in begun.items():
        try:
            objects[kind] = tuple(_kept(kind, (item for _, item in answer.reader())))
        except plugin_errors.NotInstalled:
            objects[kind] = ()
        except (plugin_errors.KubectlError, ValueError) as error:
            unread[kind] = str(error)
    if "groups" in unread:  # a missing API group looks like an unread one
        for kind in [kind for kind in _PATHS if kind not in begun]:
            del objects[kind]
            unread[kind] = unread["groups"]
    rights = _answer("rights", unread, lambda: _rights(proxy)) if installing else None
    return ClusterFacts(
        _plan(manifests, objects),
        installing=installing,
        version=version or None,
        groups=None if "groups" in unread else frozenset(groups) - {""},
        objects=objects,
        rights=rights,
        trial=_answer("trial", unread, lambda: _trial(trial)) if trial is not None else None,
        unread=unread,
    )


def of_objects(items: Iterable[Json], manifests: Iterable[Json] = (), *, installing: bool) -> ClusterFacts:
    """Return the facts in saved objects. A kind without objects counts as not saved."""
    objects: dict[str, list[Json]] = {}
    version, groups = "", set()
    for item in items:
        kind = str(item.get("kind") or "")
        version = version or str((item.get("serverVersion") or {}).get("gitVersion") or "")
        if kind in KINDS:
            objects.setdefault(kind, []).append(item)
        if kind == "CustomResourceDefinition":
            groups.add(str((item.get("spec") or {}).get("group") or ""))
    saved = {kind: tuple(_kept(kind, items)) for kind, items in objects.items()}
    unread = {
        kind: f"no {name} were saved: add --from FILE with what `kubectl get {name} -A -o yaml` prints"
        for kind, name in KINDS.items()
        if kind not in saved
    }
    if groups:  # CRDs were saved: a custom kind without its CRD does not exist; otherwise it may just not be saved
        absent = {kind for kind in ("ClusterPolicy", contract.GPUNODE_KIND) if _PATHS[kind][0] not in groups}
        saved |= dict.fromkeys(absent - saved.keys(), ())
    unread |= {
        "version": "the API server's version was not saved: add --from FILE with what `kubectl version -o yaml` prints",
        "groups": "no customresourcedefinitions were saved: add --from FILE with what `kubectl get crd -o yaml` prints",
        "rights": "saved objects do not tell what you may do",
        "trial": "no pod can be tried on saved objects",
    }
    return ClusterFacts(
        _plan(manifests, saved),
        installing=installing,
        version=version or None,
        groups=frozenset(groups) or None,
        objects=saved,
        unread=unread,
    )


def _groups(proxy: kubectl.Proxy, unread: dict[str, str]) -> dict[str, str]:
    """Return API group → preferred version, including the core group, which is empty."""
    try:
        answer = json.loads(proxy.get("/apis").text())
    except (plugin_errors.KubectlError, ValueError) as error:
        unread["groups"] = str(error)
        return {"": "v1", "apps": "v1", _ADMISSION: "v1"}
    versions = {str(group["name"]): str(group["preferredVersion"]["version"]) for group in answer.get("groups") or ()}
    return {"": "v1", **versions}


def _plan(manifests: Iterable[Json], objects: Mapping[str, tuple[Json, ...]]) -> facts_of_cluster.InstallPlan:
    kinds = ("DaemonSet", "Deployment", "ConfigMap")
    there = [item for kind in kinds for item in objects.get(kind, ()) if namespace(item) == contract.SYSTEM_NAMESPACE]
    planned, live = facts_of_cluster.from_manifests(manifests), facts_of_cluster.from_manifests(there)
    if not planned.is_known:
        return live
    return planned if planned.configurations else dataclasses.replace(planned, configurations=live.configurations)


def _kept(kind: str, items: Iterable[Json]) -> Iterator[Json]:
    """Yield the objects without `managedFields`; of pods only those of gpushare and those that hold GPUs."""
    for item in items:
        (item.get("metadata") or {}).pop("managedFields", None)
        if kind != "Pod" or namespace(item) == contract.SYSTEM_NAMESPACE or devices.holds_gpu(item):
            yield {"kind": kind, **item}


def _answer(what: str, unread: dict[str, str], ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except (plugin_errors.KubectlError, ValueError) as error:
        unread[what] = str(error)
        return None


def _rights(proxy: kubectl.Proxy) -> dict[str, bool]:
    if _allowed(_review(proxy, "* *.*")):  # an administrator's right, which implies all others
        return dict.fromkeys(cluster_rules.RIGHTS, True)
    begun = {right: _review(proxy, right) for right in cluster_rules.RIGHTS}
    return {right: _allowed(answer) for right, answer in begun.items()}


def _review(proxy: kubectl.Proxy, right: str) -> kubectl.Answer:
    verb, _, resource = right.partition(" ")
    name, _, group = resource.partition(".")
    spec = {"resourceAttributes": {"verb": verb, "resource": name, "group": group}}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec}
    return proxy.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", json.dumps(body))


def _allowed(answer: kubectl.Answer) -> bool:
    return bool((json.loads(answer.text()).get("status") or {}).get("allowed"))


def _trial(answer: kubectl.Answer) -> Trial:
    try:
        return Trial(json.loads(answer.text()))
    except plugin_errors.KubectlError as error:
        return Trial(None, str(error))


def _probe() -> Json:
    context = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    resources = {"requests": {"cpu": "1m", "memory": "1Mi"}, "limits": {"cpu": "1m", "memory": "1Mi"}}
    main = {
        "name": "main",
        "image": "gpushare-check.invalid/nothing",
        "securityContext": context,
        "resources": resources,
    }
    metadata = {"generateName": "gpushare-check-", "annotations": {contract.REQUEST: "0.01", contract.MEMORY: "1Mi"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [main]}}
