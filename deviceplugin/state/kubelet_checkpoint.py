"""What the kubelet has written down of who holds which device: the list that it goes by when it has just started.

Its pod-resources API says nothing while it is away, and for a moment after its start that nobody holds anything: just
then it judges the pods it has, by this file (`pkg/kubelet/cm/devicemanager/checkpoint` of Kubernetes), and refuses
those with a device that is not healthy. What cannot be read is taken for nothing: the API is asked as well.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, Final

NAME: Final = "kubelet_internal_checkpoint"  # in the directory of plugins


def read(path: Path) -> Mapping[str, Mapping[str, frozenset[str]]]:
    """By the pod's uid, by resource: the ids that its containers hold, or held as long as they ran."""
    try:
        return _read(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def of_pods(kept: Mapping[str, Mapping[str, frozenset[str]]], uids: Container[str]) -> Mapping[str, frozenset[str]]:
    """By resource the ids of these pods alone: it forgets a pod that is gone only with the next one that comes."""
    device_ids: dict[str, frozenset[str]] = {}
    for uid, held in kept.items():
        if uid in uids:
            for resource, ids in held.items():
                device_ids[resource] = device_ids.get(resource, frozenset()) | ids
    return device_ids


def containers(path: Path) -> Mapping[tuple[str, str, str], frozenset[str]]:
    """By the pod's uid, the container's name and the resource: the ids that the container holds, or held."""
    try:
        return _by_container(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _read(document: Any) -> Mapping[str, Mapping[str, frozenset[str]]]:
    by_pod: dict[str, dict[str, frozenset[str]]] = collections.defaultdict(dict)
    for (uid, _, resource), ids in _by_container(document).items():
        by_pod[uid][resource] = by_pod[uid].get(resource, frozenset()) | ids
    return by_pod


def _by_container(document: Any) -> Mapping[tuple[str, str, str], frozenset[str]]:
    held: dict[tuple[str, str, str], frozenset[str]] = {}
    for entry in document["Data"]["PodDeviceEntries"] or ():
        ids = frozenset(str(device_id) for of_numa_node in entry["DeviceIDs"].values() for device_id in of_numa_node)
        key = str(entry["PodUID"]), str(entry.get("ContainerName")), str(entry["ResourceName"])
        held[key] = held.get(key, frozenset()) | ids
    return held
