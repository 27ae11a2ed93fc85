"""ClusterFacts: the objects of a cluster, by kind, and the reason for each kind that could not be read.

A rule that needs an unreadable kind does not guess: `of` raises `Unread`, and `check` reports it. The InstallPlan is
what the installation's manifests say about the pods of agent and webhook.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from gpushare import contract
from gpushare import node as nodes
from gpushare.nodefilters import selectors, taints

# Kubernetes adds these tolerations to every pod of a DaemonSet.
_OF_DAEMONSETS = taints.tolerations(
    {"key": f"node.kubernetes.io/{name}", "operator": "Exists"}
    for name in ("not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")
)


@dataclasses.dataclass(frozen=True, slots=True)
class Workload:
    """A workload, by the spec of its pods."""

    pod: Mapping[str, Any]

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> Workload:
        """Read a Deployment or DaemonSet."""
        return cls(((manifest.get("spec") or {}).get("template") or {}).get("spec") or {})

    def selects(self, node: Mapping[str, Any]) -> bool:
        """Whether its node selector and affinity allow the node."""
        labels = nodes.labels(node)
        wanted = self.pod.get("nodeSelector") or {}
        if any(labels.get(key) != value for key, value in wanted.items()):
            return False
        affinity = (self.pod.get("affinity") or {}).get("nodeAffinity") or {}
        terms = selectors.of_nodes(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
        return terms is None or any(term.matches(nodes.name(node), labels) for term in terms)

    def repelled(self, node: Mapping[str, Any]) -> taints.Taint | None:
        """Return the first taint of the node that a DaemonSet's pod of this kind does not tolerate."""
        tolerated = taints.Tolerated((*taints.tolerations(self.pod.get("tolerations")), *_OF_DAEMONSETS))
        return tolerated.first_untolerated(taints.of_effect(at(node, "spec", "taints"), *taints.REPELLING))

    def containers(self) -> Iterator[Mapping[str, Any]]:
        """Its containers, including init containers."""
        for key in ("initContainers", "containers"):
            yield from (container for container in self.pod.get(key) or () if isinstance(container, Mapping))

    def images(self) -> tuple[str, ...]:
        """The names of its images, without repetition."""
        return tuple(dict.fromkeys(str(container.get("image") or "") for container in self.containers()))

    def host_path(self, volume: str) -> str:
        """Return the host directory of the volume of this name, or ""."""
        named = (entry for entry in self.pod.get("volumes") or () if entry.get("name") == volume)
        return str(at(next(named, None), "hostPath", "path") or "")

    def environment(self) -> dict[str, str]:
        """The environment variables of its containers that have a literal value."""
        return {
            str(entry["name"]): str(entry["value"])
            for container in self.containers()
            for entry in container.get("env") or ()
            if entry.get("name") and entry.get("value") is not None
        }

    def capabilities(self) -> frozenset[str]:
        """The capabilities that its containers add."""
        return frozenset(
            str(name)
            for container in self.containers()
            for name in ((container.get("securityContext") or {}).get("capabilities") or {}).get("add") or ()
        )


AGENT: Final = "gpushare-agent"  # name of the DaemonSet
WEBHOOK: Final = "gpushare-webhook"  # name of the Deployment
DEFRAG: Final = "gpushare-defrag"  # name of the CronJob, which is optional
GPU_PRESENT: Final = "nvidia.com/gpu.present"
KUBELET_DIRECTORY: Final = "/var/lib/kubelet/device-plugins"
KUBELET_VOLUME: Final = "device-plugins"

# The parts of config/base/deviceplugin that rules need if no manifests are given; a test compares them.
_AGENT_POD: Final[Mapping[str, Any]] = {
    "tolerations": [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "CriticalAddonsOnly", "operator": "Exists"},
        *({"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in contract.STARTUP_TAINTS),
    ],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": contract.NODE_CONFIG_LABEL, "operator": "Exists"}]},
                    {"matchExpressions": [{"key": GPU_PRESENT, "operator": "In", "values": ["true"]}]},
                    {
                        "matchExpressions": [
                            {"key": "feature.node.kubernetes.io/pci-10de.present", "operator": "In", "values": ["true"]}
                        ]
                    },
                ]
            }
        }
    },
    "volumes": [{"name": KUBELET_VOLUME, "hostPath": {"path": KUBELET_DIRECTORY}}],
}


@dataclasses.dataclass(frozen=True, slots=True)
class InstallPlan:
    """`configurations`: the ConfigMap's entries that nodes choose from. `is_known`: read from manifests."""

    agent: Workload = dataclasses.field(default_factory=lambda: Workload(_AGENT_POD))
    webhook: Workload = dataclasses.field(default_factory=lambda: Workload({}))
    defrag: Workload = dataclasses.field(default_factory=lambda: Workload({}))
    configurations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    is_known: bool = False


def from_manifests(manifests: Iterable[Mapping[str, Any]]) -> InstallPlan:
    """Return what these manifests install; the default for an absent agent or webhook."""
    plan = InstallPlan()
    config_maps: dict[str, Mapping[str, str]] = {}
    for manifest in manifests:
        metadata = manifest.get("metadata") or {}
        match (manifest.get("kind"), metadata.get("name")):
            case ("DaemonSet", str() as name) if name == AGENT:
                plan = dataclasses.replace(plan, agent=Workload.from_manifest(manifest), is_known=True)
            case ("Deployment", str() as name) if name == WEBHOOK:
                plan = dataclasses.replace(plan, webhook=Workload.from_manifest(manifest), is_known=True)
            case ("CronJob", str() as name) if name == DEFRAG:
                plan = dataclasses.replace(
                    plan, defrag=Workload.from_manifest((manifest.get("spec") or {}).get("jobTemplate") or {})
                )
            case ("ConfigMap", str() as name):
                config_maps[name] = dict(manifest.get("data") or {})
    arguments = [str(argument) for container in plan.agent.containers() for argument in container.get("args") or ()]
    named = [argument.rpartition("/")[2] for argument in arguments if argument.startswith("--config-map=")]
    config_map = named[-1] if named else contract.CONFIG_MAP
    return dataclasses.replace(plan, configurations=config_maps.get(config_map, {}))


Json = Mapping[str, Any]

# kind -> its name for `kubectl get`
KINDS: Final[Mapping[str, str]] = {
    "Node": "nodes",
    "Namespace": "namespaces",
    "Pod": "pods",
    "ConfigMap": "configmaps",
    "DaemonSet": "daemonsets",
    "Deployment": "deployments",
    "ResourceQuota": "resourcequotas",
    "RuntimeClass": "runtimeclasses",
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
    "DeviceClass": "deviceclasses",
    "ClusterPolicy": "clusterpolicies.nvidia.com",
    contract.GPUNODE_KIND: f"{contract.GPUNODE_PLURAL}.{contract.GROUP_NAME}",
}


# field of ClusterFacts -> the reason for None, if no other is given
_UNREAD: Final[Mapping[str, str]] = {
    "version": "the API server's version is unknown",
    "groups": "the API groups are not known",
    "rights": "the user's permissions are unknown",
    "trial": "no test pod was submitted",
}
Fact = TypeVar("Fact")


class Unread(Exception):  # noqa: N818 - reads as what it is
    """A fact that a rule needs could not be read; the message is the reason."""


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """The API server's response to a dry run that creates a pod with a share.

    pod: as it would have been stored, None if rejected; refusal: the API server's message.
    """

    pod: Json | None
    refusal: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The facts that were read of a cluster.

    installing: gpushare is not installed, or is about to be replaced. version: of the API server, such as `v1.36.2`;
    groups: its API groups; rights: what the user may do, such as `create daemonsets.apps`; unread: by kind, or by
    `version`, `groups`, `rights`, `trial`, the reason why it is unknown.
    """

    plan: InstallPlan
    installing: bool = False
    version: str | None = None
    groups: frozenset[str] | None = None
    objects: Mapping[str, tuple[Json, ...]] = dataclasses.field(default_factory=dict)
    rights: Mapping[str, bool] | None = None
    trial: Trial | None = None
    unread: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def of(self, kind: str) -> tuple[Json, ...]:
        """Return all objects of a kind. Raises `Unread`."""
        if kind in self.objects:
            return self.objects[kind]
        raise Unread(self.unread.get(kind, f"{KINDS[kind]} are not known"))

    def known(self, kind: str) -> tuple[Json, ...]:
        """Return the objects of a kind, none if unreadable: for details that only add to a finding."""
        return self.objects.get(kind, ())

    def fact(self, value: Fact | None, name: str) -> Fact:
        """Return the value of the field `name`. Raises `Unread` for None."""
        if value is None:
            raise Unread(self.unread.get(name, _UNREAD[name]))
        return value

    def gpu_nodes(self) -> tuple[Json, ...]:
        """Return the Nodes that match the agent's node selector and affinity. Raises `Unread`."""
        return tuple(node for node in self.of("Node") if self.plan.agent.selects(node))

    def system(self, kind: str) -> Iterator[Json]:
        """Return the objects of a kind in gpushare's namespace. Raises `Unread`."""
        return (item for item in self.of(kind) if namespace(item) == contract.SYSTEM_NAMESPACE)

    def system_named(self, kind: str, wanted: str) -> Json | None:
        """Return the object of that name in gpushare's namespace. Raises `Unread`."""
        return next((item for item in self.system(kind) if nodes.name(item) == wanted), None)


def namespace(manifest: Json) -> str:
    """Return an object's namespace, or ""."""
    return str((manifest.get("metadata") or {}).get("namespace") or "")


def at(value: Any, *path: str) -> Any:
    """Return the value at a path of keys; None if absent or of another type."""
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def entries(document: Any, *path: str) -> tuple[Json, ...]:
    """Return the objects of a list at a path of keys."""
    values = at(document, *path)
    return tuple(entry for entry in values if isinstance(entry, Mapping)) if isinstance(values, list | tuple) else ()
