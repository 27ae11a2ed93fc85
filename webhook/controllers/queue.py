"""The queue of gated pods: their order, which of them are alike, and how many wait. Pure."""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Final

from gpushare import contract, quantity
from gpushare import request as requests
from gpushare.nodefilters import volumes
from gpushare.pod import containers, default_container, init_containers
from gpushare.refusal import Refusal
from webhook.pods.stored_pod import CONTAINER_KEYS, FITNESS_KEYS, Pod

Order = tuple[int, str, tuple[str, str]]  # lowest first

# With these keys, the pod's namespace and labels matter too.
_SOCIAL_KEYS: Final = ("affinity", "topologySpreadConstraints", "volumes")


def order(pod: Pod) -> Order:
    return -pod.priority, pod.created, (pod.ref.namespace, pod.ref.name)


def kind(pod: Pod) -> str:
    """Return a key that is equal for pods with the same needs: if one fits nowhere, neither does the other."""
    asked = {key: value for key, value in pod.annotations.items() if not requests.is_result_key(key)}
    # Not the volumes themselves: every pod has one for its token, with a unique name, and its own ephemeral claims.
    mounts = [dataclasses.astuple(mount) for mount in volumes.mounts(pod.manifest)]
    spec = {**pod.manifest["spec"], "volumes": mounts}
    fitness = {key: spec.get(key) for key in FITNESS_KEYS}
    everyone = [
        [container.get(key) for key in CONTAINER_KEYS]
        for listed in (containers(pod.manifest), init_containers(pod.manifest))
        for container in listed
    ]
    labels = pod.manifest["metadata"].get("labels")
    is_social = contract.EXCLUSION in asked or any(spec.get(key) for key in _SOCIAL_KEYS)
    who = [pod.ref.namespace, labels] if is_social else []
    return json.dumps([asked, fitness, everyone, who, default_container(pod.manifest)], sort_keys=True)


def counts(waiting: Iterable[tuple[Pod, Refusal]]) -> Mapping[tuple[str, str], int]:
    return collections.Counter((pod.ref.namespace, refusal.word) for pod, refusal in waiting)


def longest_seconds(pods: Iterable[Pod], *, now: float) -> float:
    """Return the age of the oldest pod; `now` in Unix seconds. A pod with an invalid creation time counts as new."""
    # Parse each creation time once: thousands of pods often share a few.
    return max((age_seconds(created, now) for created in {pod.created for pod in pods}), default=0.0)


def age_seconds(created: str, now: float) -> float:
    try:
        return max(0.0, now - quantity.parse_time(created))
    except ValueError:
        return 0.0
