"""The queue of gated pods: who is next, and who need not be tried. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpushare import contract, pod
from gpushare import request as requests
from gpushare.nodefilters import volumes
from webhook.pods import provenance
from webhook.pods.copies import CONTAINER_KEYS, FITNESS_KEYS

PodJson = Mapping[str, Any]
Order = tuple[int, str, tuple[str, str]]  # least first

# With these it matters who the pod is: they look at labels, and at pods of the same namespace.
_SOCIAL_KEYS: Final = ("affinity", "topologySpreadConstraints", "volumes")


def waiting(pods: Iterable[PodJson]) -> list[PodJson]:
    """The gated ones in the order in which they are placed: by priority, then age, then name."""
    gated = [one for one in pods if waits(one)]
    return sorted(gated, key=order)


def order(one: PodJson) -> Order:
    """Its place in the queue: by priority, then age, then name."""
    return -pod.priority(one), created(one), pod.namespaced_name(one)


def created(one: PodJson) -> str:
    """When it was created, as the API server writes it: such texts sort by time."""
    return str((one.get("metadata") or {}).get("creationTimestamp", ""))


def kind(one: PodJson) -> str:
    """Equal for pods of which, when one fits nowhere, the other fits nowhere either."""
    asked = {
        key: value
        for key, value in pod.annotations_of(one).items()
        if key.startswith(contract.PREFIX) and not requests.is_result_key(key)
    }
    spec = one.get("spec") or {}
    # Every pod has one volume more, for its token, with a name of its own. A claim that is made for the pod is its own.
    mounts = volumes.mounts(one)
    spec = {**spec, "volumes": [dataclasses.astuple(mount) for mount in mounts]}
    fitness = {key: spec.get(key) for key in FITNESS_KEYS}
    containers = [
        [container.get(key) for key in CONTAINER_KEYS]
        for listed in (pod.containers(one), pod.init_containers(one))
        for container in listed
    ]
    metadata = one.get("metadata") or {}
    who = [metadata.get("namespace"), metadata.get("labels")] if any(spec.get(key) for key in _SOCIAL_KEYS) else []
    return json.dumps([asked, fitness, containers, who, pod.default_container(one)], sort_keys=True)


def waits(one: PodJson) -> bool:
    """Whether it is gated by us, and there for us to place."""
    if contract.SCHEDULING_GATE not in pod.gates(one):
        return False
    leaves = (one.get("metadata") or {}).get("deletionTimestamp")
    return not leaves and not pod.is_terminal(one) and not provenance.is_exempt(one)
