"""The queue of gated pods: who is next, and who need not be tried. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gpushare import contract, pod
from gpushare import request as requests

PodJson = Mapping[str, Any]

# Of a pod's spec, what decides where it can run.
_FITNESS_KEYS = ("nodeSelector", "affinity", "tolerations")


def waiting(pods: Iterable[PodJson]) -> list[PodJson]:
    """The gated ones in the order in which they are placed: by priority, then age, then name."""
    gated = [one for one in pods if _waits(one)]
    return sorted(gated, key=lambda one: (-pod.priority(one), _created(one), pod.namespaced_name(one)))


def kind(one: PodJson) -> str:
    """Equal for pods of which, when one fits nowhere, the other fits nowhere either."""
    asked = {
        key: value
        for key, value in pod.annotations_of(one).items()
        if key.startswith(contract.PREFIX) and not requests.is_result_key(key)
    }
    spec = one.get("spec") or {}
    fitness = {key: spec.get(key) for key in _FITNESS_KEYS}
    return json.dumps([asked, fitness, pod.default_container(one)], sort_keys=True)


def _waits(one: PodJson) -> bool:
    leaves = (one.get("metadata") or {}).get("deletionTimestamp")
    return contract.SCHEDULING_GATE in pod.gates(one) and not leaves and not pod.is_terminal(one)


def _created(one: PodJson) -> str:
    return str((one.get("metadata") or {}).get("creationTimestamp", ""))
