"""A tolerant reader of Pod JSON: what the rest needs to know of a pod, without believing in its completeness."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from gpushare import contract, errors, quantity

PodJson = Mapping[str, Any]

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


@dataclasses.dataclass(frozen=True, slots=True)
class Controller:
    """The owner of a pod that recreates it when it is gone."""

    kind: str
    name: str
    uid: str


def annotations_of(pod: PodJson) -> Mapping[str, str]:
    """Its annotations, or an empty mapping."""
    return (pod.get("metadata") or {}).get("annotations") or {}


def containers(pod: PodJson) -> list[Mapping[str, Any]]:
    """The pod's ordinary containers."""
    return list((pod.get("spec") or {}).get("containers") or [])


def init_containers(pod: PodJson) -> list[Mapping[str, Any]]:
    """Its init containers, restartable ones (sidecars) among them."""
    return list((pod.get("spec") or {}).get("initContainers") or [])


def is_sidecar(init_container: Mapping[str, Any]) -> bool:
    """Whether this init container goes on running beside the containers that start after it."""
    return init_container.get("restartPolicy") == "Always"


def container_names(pod: PodJson) -> tuple[str, ...]:
    """Names of all containers, ordinary ones first."""
    return tuple(str(container.get("name") or "") for container in (*containers(pod), *init_containers(pod)))


def default_container(pod: PodJson) -> str:
    """The ordinary container that has the share for which the annotations name none; empty without such.

    At first that is the one that kubectl takes: the annotated one if it exists, else the first. The webhook then writes
    gpushare's resources into it, which never change again. From then on they decide, because other webhooks add
    containers in front, and users annotate pods that run.
    """
    ordinary = containers(pod)
    marked = [container for container in ordinary if any(map(_is_ours, resources(container)))]
    names = [str(container.get("name") or "") for container in marked or ordinary]
    if marked:
        own = {key.partition("/")[2].partition(".")[2] for key in share_keys(annotations_of(pod))}
        names = [name for name in names if name not in own]
    wanted = annotations_of(pod).get(DEFAULT_CONTAINER)
    return wanted if wanted in names else names[0] if names else ""


def resources(container: Mapping[str, Any]) -> Iterator[str]:
    """The resources that a container asks for, by limit or request: an amount of zero is none."""
    declared = container.get("resources") or {}
    for side in ("limits", "requests"):
        for name, amount in (declared.get(side) or {}).items():
            if is_some(str(amount)):
                yield name


@functools.lru_cache(maxsize=4096)
def is_some(amount: str) -> bool:
    """Whether a quantity is more than zero; the API server stores none that cannot be read."""
    try:
        return quantity.parse(amount) > 0
    except errors.QuantityError:
        return False


def has_share_resources(pod: PodJson) -> bool:
    """Whether a container asks for a resource of gpushare's."""
    return any(
        _is_ours(name) for container in (*containers(pod), *init_containers(pod)) for name in resources(container)
    )


def share_keys(keys: Mapping[str, str]) -> Iterator[str]:
    """Those of the annotation keys that ask for a share, in the order written."""
    for key in keys:
        if any(key == known or key.startswith(known + ".") for known in contract.SHARE_KEYS):
            yield key


def asks_for_share(pod: PodJson) -> bool:
    """Whether the pod is ours: it has an annotation that asks for a share."""
    return next(share_keys(annotations_of(pod)), None) is not None


def is_terminal(pod: PodJson) -> bool:
    """Whether it has ended for good and uses nothing any more."""
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def gates(pod: PodJson) -> tuple[str, ...]:
    """Names of its scheduling gates."""
    return tuple(str(gate.get("name") or "") for gate in (pod.get("spec") or {}).get("schedulingGates") or [])


def priority(pod: PodJson) -> int:
    """Its priority as resolved by the API server; 0 when unset."""
    return int((pod.get("spec") or {}).get("priority") or 0)


def namespaced_name(pod: PodJson) -> tuple[str, str]:
    """Its `(namespace, name)`; empty where it has none."""
    metadata = pod.get("metadata") or {}
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")


def controller(pod: PodJson) -> Controller | None:
    """Who recreates it; None for a pod that nobody does."""
    for owner in (pod.get("metadata") or {}).get("ownerReferences") or []:
        if owner.get("controller"):
            return Controller(*(str(owner.get(key) or "") for key in ("kind", "name", "uid")))
    return None


def deployment(pod: PodJson) -> tuple[str, str]:
    """The name of its Deployment and the hash of the template that it was made of; empty texts if it is of none."""
    owner = controller(pod)
    template = str(((pod.get("metadata") or {}).get("labels") or {}).get("pod-template-hash") or "")
    if owner is None or owner.kind != "ReplicaSet" or not template or not owner.name.endswith(f"-{template}"):
        return "", ""
    return owner.name.removesuffix(f"-{template}"), template


def runtime_class(pod: PodJson) -> str:
    """The RuntimeClass that it names; empty for none."""
    return str((pod.get("spec") or {}).get("runtimeClassName") or "")


def uid(pod: PodJson) -> str:
    """Its UID; empty before the API server has given one."""
    return str((pod.get("metadata") or {}).get("uid") or "")


def _is_ours(resource: str) -> bool:
    return resource.startswith(contract.PREFIX)
