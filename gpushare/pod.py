"""A tolerant reader of Pod JSON: every field may be missing."""

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
    """The owner of a pod that recreates it."""

    kind: str
    name: str
    uid: str


def annotations_of(pod: PodJson) -> Mapping[str, str]:
    """Return the annotations, or an empty mapping."""
    return (pod.get("metadata") or {}).get("annotations") or {}


def containers(pod: PodJson) -> list[Mapping[str, Any]]:
    """Return the app containers."""
    return list((pod.get("spec") or {}).get("containers") or [])


def init_containers(pod: PodJson) -> list[Mapping[str, Any]]:
    """Return the init containers, including restartable ones (sidecars)."""
    return list((pod.get("spec") or {}).get("initContainers") or [])


def all_containers(pod: PodJson) -> list[Mapping[str, Any]]:
    """Return app containers, then init containers."""
    return [*containers(pod), *init_containers(pod)]


def is_sidecar(init_container: Mapping[str, Any]) -> bool:
    """Whether this init container keeps running next to the containers that start after it."""
    return init_container.get("restartPolicy") == "Always"


def container_names(pod: PodJson) -> tuple[str, ...]:
    """Return the names of all containers, app containers first."""
    return tuple(str(container.get("name") or "") for container in all_containers(pod))


def default_container(pod: PodJson) -> str:
    """Return the app container that gets the share if the annotations name none; empty if there is none.

    On creation it is kubectl's default: the annotated container if it exists, else the first. From then on gpushare's
    resources, which are immutable, decide: other webhooks may insert containers, and users annotate running pods.
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
    """Yield the resources in a container's limits or requests; zero amounts do not count."""
    declared = container.get("resources") or {}
    for side in ("limits", "requests"):
        for name, amount in (declared.get(side) or {}).items():
            if is_some(str(amount)):
                yield name


@functools.lru_cache(maxsize=4096)
def is_some(amount: str) -> bool:
    """Whether a quantity is above zero; an invalid one, which the API server never stores, is not."""
    try:
        return quantity.parse(amount) > 0
    except errors.QuantityError:
        return False


def has_share_resources(pod: PodJson) -> bool:
    """Whether a container requests a resource of gpushare."""
    return any(any(map(_is_ours, resources(each))) for each in all_containers(pod))


def share_keys(keys: Mapping[str, str]) -> Iterator[str]:
    """Yield the annotation keys that ask for a share, in order."""
    for key in keys:
        if any(key == known or key.startswith(known + ".") for known in contract.SHARE_KEYS):
            yield key


def asks_for_share(pod: PodJson) -> bool:
    """Whether an annotation asks for a share."""
    return next(share_keys(annotations_of(pod)), None) is not None


def is_terminal(pod: PodJson) -> bool:
    """Whether the pod has ended and uses nothing any more."""
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def gates(pod: PodJson) -> tuple[str, ...]:
    """Return the names of the scheduling gates."""
    return tuple(str(gate.get("name") or "") for gate in (pod.get("spec") or {}).get("schedulingGates") or [])


def priority(pod: PodJson) -> int:
    """Return the priority that the API server resolved; 0 if unset."""
    return int((pod.get("spec") or {}).get("priority") or 0)


def namespaced_name(pod: PodJson) -> tuple[str, str]:
    """Return (namespace, name); empty strings if missing."""
    metadata = pod.get("metadata") or {}
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")


def controller(pod: PodJson) -> Controller | None:
    """Return the owner that recreates the pod, or None."""
    owners = (pod.get("metadata") or {}).get("ownerReferences") or []
    owner = next((owner for owner in owners if owner.get("controller")), None)
    return owner and Controller(*(str(owner.get(key) or "") for key in ("kind", "name", "uid")))


def deployment(pod: PodJson) -> tuple[str, str]:
    """Return the name of the pod's Deployment and its template hash; empty strings without a Deployment."""
    owner = controller(pod)
    template = str(((pod.get("metadata") or {}).get("labels") or {}).get("pod-template-hash") or "")
    if owner is None or owner.kind != "ReplicaSet" or not template or not owner.name.endswith(f"-{template}"):
        return "", ""
    return owner.name.removesuffix(f"-{template}"), template


def runtime_class(pod: PodJson) -> str:
    """Return the pod's RuntimeClass, or an empty string."""
    return str((pod.get("spec") or {}).get("runtimeClassName") or "")


def uid(pod: PodJson) -> str:
    """Return the UID; empty before the API server has assigned one."""
    return str((pod.get("metadata") or {}).get("uid") or "")


def _is_ours(resource: str) -> bool:
    return resource.startswith(contract.PREFIX)
