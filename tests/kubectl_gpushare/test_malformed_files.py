"""A malformed file of `--from` ends in an error of the plugin, wherever it is malformed, and never in a traceback."""

from __future__ import annotations

import contextlib
import copy
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kubectl_gpushare import sample
from tests.kubectl_gpushare.conftest import Plugin

pytestmark = pytest.mark.slow

_TERM = {
    "topologyKey": "zone",
    "labelSelector": {
        "matchLabels": {"app": "a"},
        "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}],
    },
    "namespaces": ["ml"],
    "namespaceSelector": {"matchLabels": {"a": "b"}},
    "matchLabelKeys": ["app"],
}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_CONTAINER = {
    "name": "main",
    "ports": [{"hostPort": 80, "containerPort": 80, "protocol": "TCP"}],
    "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}},
    "env": [{"name": "A", "value": "b"}],
}
# A pod with every field that the plugin reads.
_SPEC = {
    "containers": [_CONTAINER],
    "initContainers": [{**_CONTAINER, "name": "before", "restartPolicy": "Always"}],
    "priority": 5,
    "hostNetwork": True,
    "overhead": {"cpu": "1m"},
    "schedulingGates": [{"name": "gpushare.io/placement"}],
    "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule"}],
    "nodeSelector": {"zone": "a"},
    "affinity": {
        "podAffinity": {_REQUIRED: [_TERM]},
        "podAntiAffinity": {_REQUIRED: [_TERM]},
        "nodeAffinity": {
            _REQUIRED: {
                "nodeSelectorTerms": [
                    {
                        "matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}],
                        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}],
                    }
                ]
            }
        },
    },
    "topologySpreadConstraints": [
        {**_TERM, "maxSkew": 1, "minDomains": 1, "whenUnsatisfiable": "DoNotSchedule", "nodeTaintsPolicy": "Honor"}
    ],
    "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
}
_STATUS = {
    "phase": "Running",
    "startTime": "2026-03-01T09:00:10Z",
    "conditions": [{"type": "PodResizePending", "reason": "Infeasible"}],
    "containerStatuses": [
        {
            "name": "main",
            "state": {"waiting": {"reason": "ImagePullBackOff"}},
            "resources": {"requests": {"cpu": "1"}},
            "allocatedResources": {"cpu": "1"},
        }
    ],
}
_NODE = {
    "kind": "Node",
    "metadata": {"name": "gpu-1", "labels": {"kubernetes.io/hostname": "gpu-1", "zone": "a"}},
    "spec": {"taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}], "unschedulable": False},
    "status": {
        "allocatable": {"cpu": "8", "pods": "110"},
        "capacity": {"cpu": "8"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
_BUDGET = {
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "b", "namespace": "ml"},
    "spec": {"selector": _TERM["labelSelector"]},
    "status": {"disruptionsAllowed": 1},
}
_EVENT = {
    "kind": "Event",
    "metadata": {"name": "e", "namespace": "ml", "creationTimestamp": "2026-03-01T09:00:10Z"},
    "involvedObject": {"kind": "Pod", "namespace": "ml", "name": "trainer"},
    "source": {"component": "kubelet"},
    "series": {"count": 3, "lastObservedTime": "2026-03-01T09:00:10.000000Z"},
    "count": 3,
    "type": "Warning",
    "reason": "Failed",
    "message": "no image",
}
_CONFIGURATIONS = {
    "kind": "ConfigMap",
    "metadata": {"name": "gpushare-config", "namespace": "gpushare-system"},
    "data": {"default": "version: v1"},
}
COMMANDS = (
    *("top gpus", "top nodes", "top pods -A", "top pods -A -o csv", "describe node", "describe pod -A", "describe gpu"),
    *("describe pod trainer -n ml", "why trainer -n ml", "why waiting -n ml -o yaml", "fit --request 0.5", "defrag"),
    *("rightsize -A", "audit -o wide", "config show", "config show gpu-1", "check --before-install", "check -o wide"),
    *("resize trainer -n ml --request 0.1", "top gpus -l zone=a -o json", "simulate -f {path}", "fit -f {path}"),
    "migrate",
)
_SCALARS = st.sampled_from(
    [
        "",
        "x",
        "-1",
        "0.5",
        0,
        1,
        -1,
        2**63,
        10**400,
        0.5,
        float("inf"),
        True,
        False,
        [],
        {},
        [None],
        ["x"],
        [[]],
        [{}],
        {"x": 1},
    ]
)


def _cluster(path: Path) -> dict[str, Any]:
    whole = json.loads(sample.save(path).read_text())
    waiting = sample.pod("ml/waiting", request="0.5", memory="1Gi", group="g", group_size="1")
    trainer = sample.pod("ml/trainer", node="gpu-1", request="0.5")
    for pod in (waiting, trainer):
        pod["spec"], pod["status"] = {**_SPEC, **pod["spec"], "containers": [_CONTAINER]}, dict(_STATUS)
        pod["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "uid": "u", "controller": True}]
    whole["items"] += [waiting, trainer, _NODE, _BUDGET, _EVENT, _CONFIGURATIONS]
    return dict(json.loads(json.dumps(whole)))  # no two parts may be the same object


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _places(part, (*path, key))


def _put(whole: Any, path: tuple[Any, ...], scalar: Any) -> None:
    with contextlib.suppress(KeyError, IndexError, TypeError):  # another value has replaced its parent
        for key in path[:-1]:
            whole = whole[key]
        whole[path[-1]] = copy.deepcopy(scalar)


with tempfile.TemporaryDirectory() as _directory:
    _CLUSTER = _cluster(Path(_directory) / "cluster.json")
# The sample's GPUNodes and pods are much alike: use one of each, and all objects made here.
_PLACES = [
    place
    for place in _places(_CLUSTER)
    if place[:1] != ("items",) or len(place) == 1 or place[1] in (0, 1) or place[1] >= len(_CLUSTER["items"]) - 6
]


@given(st.lists(st.tuples(st.sampled_from(_PLACES), _SCALARS), min_size=1, max_size=3), st.sampled_from(COMMANDS))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_malformed_file_never_ends_in_a_traceback(
    plugin: Plugin, tmp_path: Path, changes: list[tuple[tuple[Any, ...], Any]], words: str
) -> None:
    whole = copy.deepcopy(_CLUSTER)
    for path, scalar in changes:
        _put(whole, path, scalar)
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(whole))
    ended = plugin(*words.format(path=file).split(), "--from", file)
    assert ended.code in (0, 1, 2)
    if ended.code == 1 and not words.startswith(("audit", "check")):  # these report problems on standard output
        assert ended.err.startswith(("error: ", "warning: "))
