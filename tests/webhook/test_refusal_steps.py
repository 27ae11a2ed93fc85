"""The cost of a refusal, in steps instead of time: few per node for every pod.

A step is a call of a Python function. `bench/refusals.py` measures the time, and searches for the most expensive pod.
"""

from __future__ import annotations

import gc
import json
import sys
from typing import Any

import pytest

from gpushare import contract
from tests import builders
from webhook import metrics, review
from webhook.admission import Admission
from webhook.store.memory_store import MemoryStore
from webhook.store.reservation import Reservation

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
FEW, MANY = 40, 120
PER_NODE = 32  # to look whether it fits: some calls by each of the rules about what is free there

Json = dict[str, Any]


def store(nodes: int) -> MemoryStore:
    """Return a store with full GPUs; each node has two pods of different templates, and unique labels and taints."""
    gpunodes, machines, pods = [], [], []
    for number in range(nodes):
        name = f"n{number:03d}"
        uuid = f"GPU-{number}"
        share = {"containers": ["c"], "gpus": [uuid], "request": 90, "limit": 100, "memory": 2**30}
        holder = {"namespace": "x", "name": name, "uid": name}
        gpu = {"uuid": uuid, "index": 0, "model": "H100", "memory": 80 * 2**30, "mode": "fractional", "healthy": True}
        entries = [{"id": f"a{number}", "pod": holder, "shares": [share]}]
        gpunodes.append({"metadata": {"name": name}, "spec": {"allocations": entries}, "status": {"gpus": [gpu]}})
        labels = {contract.HOSTNAME_LABEL: name, "zone": f"z{number % 4}", "number": str(number)}
        taints = [{"key": "team", "value": str(number), "effect": "NoSchedule"}]
        status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "8", "pods": "110"}}
        machines.append({"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}, "status": status})
        for index in range(2):
            metadata = {"namespace": "team", "name": f"p{number}-{index}", "labels": {"app": f"a{number}-{index}"}}
            ports = [{"hostPort": 7000 + index}]
            pods.append(
                {"metadata": metadata, "spec": {"nodeName": name, "containers": [{"name": "c", "ports": ports}]}}
            )
    return MemoryStore(gpunodes, machines, pods)


def expressions(count: int, key: str, operator: str, *values: str) -> list[Json]:
    return [{"key": key, "operator": operator, "values": list(values)}] * count


def on_nodes(*terms: list[Json]) -> Json:
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": t} for t in terms]}}}}


def near(kind: str, key: str) -> Json:
    selector = {"matchExpressions": expressions(15, "app", "Exists")}
    term = {"topologyKey": key, "labelSelector": selector, "namespaceSelector": {}}
    return {"affinity": {kind: {REQUIRED: [term] * 4}}}


def spread(key: str) -> Json:
    selector = {"matchExpressions": expressions(15, "app", "Exists")}
    rule = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
    return {"topologySpreadConstraints": [rule] * 4}


HOSTNAME = contract.HOSTNAME_LABEL
SPECS: dict[str, Json] = {
    "nothing": {},
    "terms": on_nodes(*[expressions(1, "number", "Lt", "0")] * 16),
    "expressions": on_nodes(expressions(16, "number", "Gt", "-1")),
    "values": on_nodes(expressions(16, "number", "NotIn", *(f"v{number}" for number in range(64)))),
    "tolerations": {"tolerations": [*({"key": f"k{n}", "operator": "Exists"} for n in range(31)), {"key": "team"}]},
    "selector": {"nodeSelector": {"zone": "z1", **{f"k{number}": "v" for number in range(15)}}},
    "affinity": near("podAffinity", HOSTNAME),
    "anti-affinity": near("podAntiAffinity", HOSTNAME),
    "spread": spread(HOSTNAME),
    "ports": {"containers": [{"name": "main", "ports": [{"hostPort": 8000 + number} for number in range(64)]}]},
    "cpu": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1000"}}}]},
}


def asking(spec: Json, number: int = 0) -> Json:
    made: Json = builders.pod("p", request="0.5", min_memory=str((1 << 20) + number))
    made["metadata"]["labels"] = {"app": "mine"}
    made["spec"] |= {"tolerations": [{"operator": "Exists"}], **json.loads(json.dumps(spec))}
    made["spec"]["tolerations"] = [*made["spec"]["tolerations"], {"key": f"nonce-{number}"}][-32:]
    return made


async def steps(nodes: int, spec: Json) -> int:
    there = store(nodes)
    admission = Admission(there, Reservation(there, policy="fragmentation"), metrics.Metrics())
    counted = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal counted
        counted += event == "call"

    for number in range(2):  # what is made at the first question of all is not counted
        request: review.AdmissionRequest = {
            "uid": "u", "operation": "CREATE", "namespace": "team", "dryRun": True, "object": asking(spec, number),
        }  # fmt: skip
        counted = 0
        gc.collect()
        gc.disable()  # no finalizers of other tests' garbage in the count
        sys.setprofile(count)
        try:
            answer = await admission.answer(request)
        finally:
            sys.setprofile(None)
            gc.enable()
        assert "no GPU fits" in answer.audit["decision"]
    return counted


@pytest.mark.parametrize("name", SPECS)
async def test_law_each_node_costs_few_steps_for_any_pod(name: str) -> None:
    more = await steps(MANY, SPECS[name]) - await steps(FEW, SPECS[name])
    assert more <= PER_NODE * (MANY - FEW)
