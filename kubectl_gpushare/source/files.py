"""The source `--from FILE`: saved objects, in JSON or YAML, as kubectl prints them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from gpushare import codec, contract, errors, node, pod
from gpushare.gpunode import GpuNode
from gpushare.node import NodeJson
from gpushare.object_parsers import Json
from kubectl_gpushare import plugin_errors
from kubectl_gpushare.source import inputs

STORAGE: Final = frozenset({"PersistentVolume", "PersistentVolumeClaim", "StorageClass", "CSINode", "VolumeAttachment"})
_LISTED: Final = STORAGE | {"Node", "Event", "PodDisruptionBudget", "ResourceQuota", "Namespace", "Workload"}

_MAKE_ONE = "make one with `kubectl get gpunodes,pods -A -o yaml > FILE`"


class Files:
    """Files that are read once and together make one cluster. Objects that were not saved are None or empty."""

    default_namespace = "default"

    def __init__(self, paths: Iterable[str]) -> None:
        self._nodes: dict[str, GpuNode] = {}
        self._pods: dict[tuple[str, str], pod.PodJson] = {}
        self._others: dict[str, list[Json]] = {}  # by kind
        self._configurations: dict[str, str] | None = None
        self._placement: dict[str, str] = {}
        paths = list(paths)
        for path in paths:
            for kind, item in inputs.items(path, hint=f"; {_MAKE_ONE}"):
                if isinstance(item, dict):
                    self._add(kind, item, inputs.name(path))
        if not self._nodes and not self._pods:
            raise plugin_errors.FileError(f"{', '.join(map(inputs.name, paths))} has no GPUNode or pod: {_MAKE_ONE}")

    def gpu_nodes(self, *, label_selector: str = "", name: str = "") -> list[GpuNode]:
        nodes = [gpu_node for gpu_node in self._nodes.values() if not name or gpu_node.name == name]
        if not label_selector:
            return nodes
        if not self.node_objects():
            raise plugin_errors.FileError(
                "-l goes by the labels of Nodes, and no Node was saved: "
                "save them with `kubectl get gpunodes,nodes,pods -A -o yaml > FILE`"
            )
        matches = parse_selector(label_selector)
        chosen = {node.name(node_object) for node_object in self._others["Node"] if matches(node.labels(node_object))}
        return [gpu_node for gpu_node in nodes if gpu_node.name in chosen]

    def pods(self, *, node: str = "", namespace: str = "", label_selector: str = "") -> list[pod.PodJson] | None:
        if not self._pods:
            return None
        matches = parse_selector(label_selector)
        return [
            manifest
            for manifest in self._pods.values()
            if _is_ours(manifest)
            and (not namespace or pod.namespaced_name(manifest)[0] == namespace)
            and (not node or str((manifest.get("spec") or {}).get("nodeName") or "") in {"", node})
            and matches((manifest.get("metadata") or {}).get("labels") or {})
        ]

    def node_objects(self) -> list[NodeJson] | None:
        return [*self._others.get("Node", ())] or None

    def node_object(self, name: str) -> NodeJson | None:
        return next((item for item in self._others.get("Node", ()) if node.name(item) == name), None)

    def configurations(self) -> dict[str, str] | None:
        return self._configurations

    def placement(self) -> dict[str, str]:
        return self._placement

    def everybody(self) -> list[pod.PodJson] | None:
        return [manifest for manifest in self._pods.values() if not pod.is_terminal(manifest)] if self._pods else None

    def events(self, kind: str, namespace: str, name: str) -> list[Json] | None:
        wanted = (kind, namespace or "default", name)
        events = self._others.get("Event")
        return [event for event in events if _about(event) == wanted] if events else None

    def all_events(self) -> list[Json] | None:
        return self._others.get("Event")

    def storage(self) -> dict[str, list[Json]] | None:
        return {kind: items for kind, items in self._others.items() if kind in STORAGE} or None

    def failures(self, namespace: str) -> list[Json]:
        events = self._others.get("Event", ())
        return [event for event in events if event.get("reason") == "FailedCreate" and _about(event)[1] == namespace]

    def workload(self, kind: str, namespace: str, name: str) -> Json | None:  # noqa: ARG002
        return None

    def budgets(self) -> list[Json]:
        return self._others.get("PodDisruptionBudget", [])

    def queue_workloads(self, namespace: str) -> list[Json]:
        workloads = self._others.get("Workload", ())
        return [item for item in workloads if pod.namespaced_name(item)[0] == namespace]

    def quotas(self, namespace: str) -> list[Json]:
        quotas = self._others.get("ResourceQuota", ())
        return [quota for quota in quotas if (pod.namespaced_name(quota)[0] or "default") == namespace]

    def namespace(self, name: str) -> Json | None:
        namespaces = self._others.get("Namespace", ())
        return next((item for item in namespaces if pod.namespaced_name(item)[1] == name), None)

    def pod(self, namespace: str, name: str) -> pod.PodJson:
        if manifest := self._pods.get((namespace, name)):
            return manifest
        elsewhere = sorted(space for space, other in self._pods if other == name)
        hint = f"; there is one in {', '.join(elsewhere)}: add -n {elsewhere[0]}" if elsewhere else ""
        raise plugin_errors.KubectlNotFound(f'pod "{name}" not found in namespace "{namespace}"{hint}')

    def _add(self, kind: str, item: Json, where: str) -> None:
        if kind == contract.GPUNODE_KIND:
            try:
                gpu_node = codec.read(item)
            except errors.CodecError as error:
                raise plugin_errors.FileError(f"{where} has a GPUNode that is invalid: {error}") from error
            self._nodes[gpu_node.name] = gpu_node
        elif kind == "Pod":
            namespace, name = pod.namespaced_name(item)
            self._pods[namespace or self.default_namespace, name] = item
        elif kind == "ConfigMap":
            match (item.get("metadata") or {}).get("name"):
                case contract.CONFIG_MAP:
                    self._configurations = dict(item.get("data") or {})
                case contract.PLACEMENT_CONFIG_MAP:
                    self._placement = dict(item.get("data") or {})
        elif kind in _LISTED:
            self._others.setdefault(kind, []).append(item)


def _is_ours(manifest: pod.PodJson) -> bool:
    labels = (manifest.get("metadata") or {}).get("labels") or {}
    return labels.get(contract.SHARE_LABEL) == contract.SHARE_LABEL_VALUE or pod.asks_for_share(manifest)


def _about(event: Json) -> tuple[str, str, str]:
    """Return kind, namespace and name of an Event's object; for a cluster-wide one the namespace of the Event."""
    about = event.get("involvedObject") or event.get("regarding") or {}
    namespace = str((event.get("metadata") or {}).get("namespace") or "default")
    return str(about.get("kind", "")), namespace, str(about.get("name", ""))


Selector = Callable[[Mapping[str, str]], bool]

_KEY = r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?"
_VALUE = r"[A-Za-z0-9._-]*"
_EQUALITY = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})")
_SET = re.compile(rf"({_KEY})\s+(in|notin)\s*\(([^()]*)\)")
_EXISTS = re.compile(rf"(!?)\s*({_KEY})")
_COMMA = re.compile(r",(?![^()]*\))")  # not one inside parentheses


def parse_selector(text: str) -> Selector:
    """Return a function that says whether labels match `text`; an empty text matches all. Raises `PluginError`."""
    terms = [_term(part.strip(), text) for part in _COMMA.split(text)] if text.strip() else []
    return lambda labels: all(term(labels) for term in terms)


def _term(part: str, text: str) -> Selector:
    if match := _EQUALITY.fullmatch(part):
        key, operator, value = match.groups()
        return lambda labels: (labels.get(key) == value) is (operator != "!=")
    if match := _SET.fullmatch(part):
        key, operator, listed = match.groups()
        values = {value.strip() for value in listed.split(",")}
        return lambda labels: (labels.get(key) in values) is (operator == "in")
    if match := _EXISTS.fullmatch(part):
        negated, key = match.groups()
        return lambda labels: (key in labels) is not bool(negated)
    raise plugin_errors.PluginError(f'"{text}" is no label selector: write key=value, key!=value or "key in (a,b)"')
