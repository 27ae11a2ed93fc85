"""Reads the kubelet's device manager checkpoint: which container has which devices.

While the kubelet is down, its pod-resources API does not answer, and just after its start it lists no devices. In that
moment the kubelet admits its existing pods by this file (`pkg/kubelet/cm/devicemanager/checkpoint` of Kubernetes), and
rejects pods with an unhealthy device. An unreadable file counts as empty, as the API is read in addition to it.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, Final

NAME: Final = "kubelet_internal_checkpoint"  # in the kubelet's device plugin directory


def read(path: Path) -> Mapping[str, Mapping[str, frozenset[str]]]:
    """Return the device IDs of each pod's containers, running or ended, by pod UID and resource."""
    try:
        return _read(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def select_pods(
    by_pod: Mapping[str, Mapping[str, frozenset[str]]], uids: Container[str]
) -> Mapping[str, frozenset[str]]:
    """Return the device IDs of these pods, by resource. The kubelet drops a deleted pod late."""
    device_ids: dict[str, frozenset[str]] = {}
    for uid, held in by_pod.items():
        if uid in uids:
            for resource, ids in held.items():
                device_ids[resource] = device_ids.get(resource, frozenset()) | ids
    return device_ids


def containers(path: Path) -> Mapping[tuple[str, str, str], frozenset[str]]:
    """Return device IDs by pod UID, container name and resource, also of ended containers."""
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
