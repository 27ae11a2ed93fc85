"""ClusterFacts: the objects of a cluster, by kind, and the reason for each kind that could not be read.

A rule that needs an unreadable kind does not guess: `of` raises `Unread`, and `rules.check` reports it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpushare import contract
from gpushare import node as nodes
from gpushare.preflight.install_plan import InstallPlan

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
        raise self._unread(kind, f"{KINDS[kind]} are not known")

    def known(self, kind: str) -> tuple[Json, ...]:
        """Return the objects of a kind, none if unreadable: for details that only add to a finding."""
        return self.objects.get(kind, ())

    def server_version(self) -> str:
        """Return the API server's version. Raises `Unread`."""
        if self.version is None:
            raise self._unread("version", "the API server's version is unknown")
        return self.version

    def api_groups(self) -> frozenset[str]:
        """Return the API groups that are served. Raises `Unread`."""
        if self.groups is None:
            raise self._unread("groups", "the API groups are not known")
        return self.groups

    def allowed(self) -> Mapping[str, bool]:
        """Return what the user may do. Raises `Unread`."""
        if self.rights is None:
            raise self._unread("rights", "the user's permissions are unknown")
        return self.rights

    def tried(self) -> Trial:
        """Return the result of the dry run. Raises `Unread`."""
        if self.trial is None:
            raise self._unread("trial", "no test pod was submitted")
        return self.trial

    def gpu_nodes(self) -> tuple[Json, ...]:
        """Return the Nodes that match the agent's node selector and affinity. Raises `Unread`."""
        return tuple(node for node in self.of("Node") if self.plan.agent.selects(node))

    def system(self, kind: str) -> Iterator[Json]:
        """Return the objects of a kind in gpushare's namespace. Raises `Unread`."""
        return (item for item in self.of(kind) if namespace(item) == contract.SYSTEM_NAMESPACE)

    def system_named(self, kind: str, wanted: str) -> Json | None:
        """Return the object of that name in gpushare's namespace. Raises `Unread`."""
        return next((item for item in self.system(kind) if nodes.name(item) == wanted), None)

    def _unread(self, what: str, otherwise: str) -> Unread:
        return Unread(self.unread.get(what, otherwise))


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
