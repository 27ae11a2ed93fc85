"""Finds the pod that TYPE/NAME means: a workload's most urgent pod; and why the workload has too few pods."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from gpushare import contract, errors, pod
from kubectl_gpushare import options, plugin_errors
from kubectl_gpushare.source import chosen_source
from kubectl_gpushare.source.snapshot import message_of

if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS: Final = {
    **dict.fromkeys(("deployment", "deployments", "deploy", "deployment.apps"), "Deployment"),
    **dict.fromkeys(("replicaset", "replicasets", "rs", "replicaset.apps"), "ReplicaSet"),
    **dict.fromkeys(("statefulset", "statefulsets", "sts", "statefulset.apps"), "StatefulSet"),
    **dict.fromkeys(("daemonset", "daemonsets", "ds", "daemonset.apps"), "DaemonSet"),
    **dict.fromkeys(("job", "jobs", "job.batch"), "Job"),
    **dict.fromkeys(("cronjob", "cronjobs", "cj", "cronjob.batch"), "CronJob"),
}
_MAX: Final = 600


@dataclasses.dataclass(frozen=True, slots=True)
class PodMeant:
    """A pod. `missing`: how many pods its workload lacks and why they cannot be created; empty if it has all."""

    manifest: pod.PodJson
    missing: str = ""


def pod_meant(origin: chosen_source.Source, chosen: options.Options, word: str) -> PodMeant:
    """Return the named pod, of a workload preferably one that waits. Raises `KubectlNotFound` with its reason."""
    kind, _, name = word.partition("/")
    if kind.lower() not in KINDS or not options.is_name(name):
        return PodMeant(chosen_source.pod_named(origin, chosen, word))
    namespace, kind = chosen.namespace or origin.default_namespace, KINDS[kind.lower()]
    manifests = [manifest for manifest in origin.pods(namespace=namespace) or () if _is_of(manifest, kind, name)]
    latest = max((event for event in origin.failures(namespace) if _is_about(event, kind, name)), key=_time, default={})
    said = errors.shortened(message_of(latest), longest=_MAX)
    workload = origin.workload(kind, namespace, name)
    if manifests:
        first = min(manifests, key=_urgency)
        missing = _missing(workload, manifests, _time(latest)) if said else ""
        return PodMeant(first, f"{missing} of {kind} {name} cannot be created: {said}" if missing else "")
    where = f'{kind} "{name}" in namespace "{namespace}"'
    if said:
        raise plugin_errors.KubectlNotFound(f"{where} makes no pods: {said}")
    if misplaced := next(pod.share_keys(pod.annotations_of(workload or {})), ""):
        template = "spec.jobTemplate.spec.template" if kind == "CronJob" else "spec.template"
        raise plugin_errors.KubectlNotFound(
            f"{misplaced} on the {kind} itself gives its pods no GPU: write it into {template}.metadata.annotations"
        )
    raise plugin_errors.KubectlNotFound(
        f"no pod of {where} asks for a share of a GPU: does its template have {contract.REQUEST} or {contract.MEMORY}?"
    )


def _missing(workload: Mapping[str, Any] | None, manifests: Sequence[pod.PodJson], failed_at: str) -> str:
    """Return `1 of 2 pods`, or `pods` if their number is unknown and none was created since; empty if it has all."""
    wanted = ((workload or {}).get("spec") or {}).get("replicas")
    if wanted is not None:
        count = int(wanted) - sum(not pod.is_terminal(manifest) for manifest in manifests)
        return f"{count} of {wanted} pods" if count > 0 else ""
    created = max(str((manifest.get("metadata") or {}).get("creationTimestamp") or "") for manifest in manifests)
    return "pods" if failed_at >= created else ""


def _urgency(manifest: pod.PodJson) -> tuple[bool, bool, bool, str]:
    """Return a sort key: gated pods first, then pods on no node, then pods that have not ended; then by name."""
    gated, node = contract.SCHEDULING_GATE in pod.gates(manifest), (manifest.get("spec") or {}).get("nodeName")
    return not gated, bool(node), pod.is_terminal(manifest), pod.namespaced_name(manifest)[1]


def _is_of(manifest: pod.PodJson, kind: str, name: str) -> bool:
    if kind == "Deployment":
        return pod.deployment(manifest)[0] == name
    owners = (manifest.get("metadata") or {}).get("ownerReferences") or []
    if kind == "CronJob":
        return any(_is_run(owner, name) for owner in owners)
    return any((owner.get("kind"), owner.get("name")) == (kind, name) for owner in owners)


def _is_about(event: Mapping[str, Any], kind: str, name: str) -> bool:
    about = event.get("involvedObject") or event.get("regarding") or {}
    if kind == "Deployment":
        match = re.fullmatch(rf"{re.escape(name)}-[0-9a-z]{{5,10}}", str(about.get("name", "")))
        return about.get("kind") == "ReplicaSet" and match is not None
    if kind == "CronJob":
        return _is_run(about, name)
    return (about.get("kind"), about.get("name")) == (kind, name)


def _is_run(owner: Mapping[str, Any], name: str) -> bool:
    return owner.get("kind") == "Job" and re.fullmatch(rf"{re.escape(name)}-\d+", str(owner.get("name"))) is not None


def _time(event: Mapping[str, Any]) -> str:
    series = (event.get("series") or {}).get("lastObservedTime")
    return str(series or event.get("lastTimestamp") or event.get("eventTime") or "")
