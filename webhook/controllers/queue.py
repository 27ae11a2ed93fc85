"""The queue of gated pods: who is next, who need not be tried, and how many wait. Pure."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import json
from collections.abc import Iterable, Mapping
from typing import Final

from gpushare import contract
from gpushare import request as requests
from gpushare.nodefilters import volumes
from gpushare.pod import containers, default_container, init_containers
from gpushare.refusal import Refusal
from webhook.pods.stored_pod import CONTAINER_KEYS, FITNESS_KEYS, Pod

Order = tuple[int, str, tuple[str, str]]  # least first

# With these it matters who the pod is: they look at labels, and at pods of the same namespace.
_SOCIAL_KEYS: Final = ("affinity", "topologySpreadConstraints", "volumes")


def order(pod: Pod) -> Order:
    """Its place in the queue: by priority, then age, then name."""
    return -pod.priority, pod.created, (pod.ref.namespace, pod.ref.name)


def kind(pod: Pod) -> str:
    """Equal for gated pods of which, when one fits nowhere, the other fits nowhere either."""
    asked = {key: value for key, value in pod.annotations.items() if not requests.is_result_key(key)}
    # Every pod has one volume more, for its token, with a name of its own. A claim that is made for the pod is its own.
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
    """How many pods wait, by namespace and the word for the reason."""
    return collections.Counter((pod.ref.namespace, refusal.word) for pod, refusal in waiting)


def longest_seconds(pods: Iterable[Pod], *, now: float) -> float:
    """For how long the oldest of them has been there; `now` in Unix seconds. A pod without a date counts as new."""
    # Such texts sort by time, and very many pods are often of few moments.
    return max((_age_seconds(created, now) for created in {pod.created for pod in pods}), default=0.0)


def _age_seconds(created: str, now: float) -> float:
    try:
        return max(0.0, now - datetime.datetime.fromisoformat(created).timestamp())
    except ValueError:
        return 0.0
