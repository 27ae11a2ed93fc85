"""TYPE/NAME in place of a pod: the most urgent pod of a workload, or why it has none."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from gpushare import contract, errors, pod
from kubectl_gpushare import options, plugin_errors
from kubectl_gpushare.source import chosen_source

if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS: Final = {
    **dict.fromkeys(("deployment", "deployments", "deploy", "deployment.apps"), "Deployment"),
    **dict.fromkeys(("replicaset", "replicasets", "rs", "replicaset.apps"), "ReplicaSet"),
    **dict.fromkeys(("statefulset", "statefulsets", "sts", "statefulset.apps"), "StatefulSet"),
    **dict.fromkeys(("daemonset", "daemonsets", "ds", "daemonset.apps"), "DaemonSet"),
    **dict.fromkeys(("job", "jobs", "job.batch"), "Job"),
}
_LONGEST: Final = 600


def pod_meant(origin: chosen_source.Source, chosen: options.Options, word: str) -> pod.PodJson:
    """The pod that POD, NAMESPACE/POD or TYPE/NAME names; of a workload's pods first one that waits.

    Raises `KubectlNotFound`, with the error that its controller got if it cannot create pods.
    """
    kind, _, name = word.partition("/")
    if kind.lower() not in KINDS or not options.is_name(name):
        return chosen_source.pod_named(origin, chosen, word)
    namespace = chosen.namespace or origin.default_namespace
    return _of(origin, KINDS[kind.lower()], namespace, name)


def _of(origin: chosen_source.Source, kind: str, namespace: str, name: str) -> pod.PodJson:
    manifests = [manifest for manifest in origin.pods(namespace=namespace) or () if _is_of(manifest, kind, name)]
    if manifests:
        return min(manifests, key=lambda manifest: (*_urgency(manifest), pod.namespaced_name(manifest)[1]))
    said = _last(event for event in origin.failures(namespace) if _is_about(event, kind, name))
    where = f'{kind} "{name}" in namespace "{namespace}"'
    if said:
        raise plugin_errors.KubectlNotFound(f"{where} makes no pods: {errors.shortened(said, longest=_LONGEST)}")
    raise plugin_errors.KubectlNotFound(
        f"no pod of {where} asks for a share of a GPU: does its template have {contract.REQUEST} or {contract.MEMORY}?"
    )


def _urgency(manifest: pod.PodJson) -> tuple[bool, bool, bool]:
    """A sort key: gated pods first, then pods on no node, then pods that have not ended."""
    gated = contract.SCHEDULING_GATE in pod.gates(manifest)
    return not gated, bool((manifest.get("spec") or {}).get("nodeName")), pod.is_terminal(manifest)


def _is_of(manifest: pod.PodJson, kind: str, name: str) -> bool:
    if kind == "Deployment":
        return pod.deployment(manifest)[0] == name
    owners = (manifest.get("metadata") or {}).get("ownerReferences") or []
    return any((owner.get("kind"), owner.get("name")) == (kind, name) for owner in owners)


def _is_about(event: Mapping[str, Any], kind: str, name: str) -> bool:
    about = event.get("involvedObject") or event.get("regarding") or {}
    if kind == "Deployment":
        match = re.fullmatch(rf"{re.escape(name)}-[0-9a-z]{{5,10}}", str(about.get("name", "")))
        return about.get("kind") == "ReplicaSet" and match is not None
    return (about.get("kind"), about.get("name")) == (kind, name)


def _last(events: Iterable[Mapping[str, Any]]) -> str:
    """The message of the latest Event; empty if there is none."""
    latest = max(events, key=_time, default=None)
    return "" if latest is None else str(latest.get("message") or latest.get("note") or "")


def _time(event: Mapping[str, Any]) -> str:
    series = (event.get("series") or {}).get("lastObservedTime")
    return str(series or event.get("lastTimestamp") or event.get("eventTime") or "")
