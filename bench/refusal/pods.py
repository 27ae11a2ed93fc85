"""Pods that have the maximum of one thing, or far more, and request what no node has."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from gpushare import contract

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

Json = dict[str, Any]

TOLERATES = [{"key": f"team-{number}", "operator": "Exists"} for number in range(3)]


def pod(containers: int = 1, *, spec: Mapping[str, Any] | None = None, **annotations: str) -> Json:
    asked = {contract.PREFIX + key.replace("_", "-"): value for key, value in annotations.items()}
    made = [{"name": f"c{number}"} for number in range(containers)]
    metadata = {"name": "p", "namespace": "team", "labels": {"app": "mine"}, "annotations": asked}
    return {"metadata": metadata, "spec": {"containers": made, "tolerations": TOLERATES, **(spec or {})}}


def many(count: int, requests: list[str], *, gpus: int = 1, **more: str) -> Json:
    made = pod(count, spec=None, **more)
    for number in range(count):
        made["metadata"]["annotations"] |= {
            f"{contract.REQUEST}.c{number}": requests[number % len(requests)],
            f"{contract.GPUS}.c{number}": str(gpus),
        }
    return made


def ordinary(draw: random.Random) -> Json:
    """Return a pod for a fifth of a GPU to eight GPUs, with CPU, and sometimes with a model or a second share."""
    gpus = draw.choice((1, 1, 1, 1, 2, 4, 8))
    request = "1" if gpus > 1 else f"0.{draw.randrange(20, 100)}"
    if draw.random() < 0.2:
        made = many(2, [request, f"0.{draw.randrange(10, 60)}"], gpus=gpus)
    else:
        made = pod(request=request, gpus=str(gpus))
        if draw.random() < 0.2:
            made["metadata"]["annotations"][contract.MODEL] = f"*H100*{draw.randrange(4)}"
    cpu, gibibytes = draw.choice((1, 2, 4, 8)), draw.choice((4, 16, 64))
    made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": str(cpu), "memory": f"{gibibytes}Gi"}}
    return made


def on_nodes(terms: int, expressions: int, values: int) -> Json:
    """Return requirements of which only the last in each term fails."""
    holding = [
        {
            "key": "zone",
            "operator": "In",
            "values": [*(f"x{number}" for number in range(values)), *(f"z{index}" for index in range(10))],
        }
        for _ in range(expressions - 1)
    ]
    last = {"key": "number", "operator": "Lt", "values": ["0"]}
    term = {"matchExpressions": [*holding, last]}
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term] * terms}}}}


def near(kind: str, terms: int, expressions: int) -> Json:
    selector = {"matchExpressions": [{"key": "app", "operator": "Exists"}] * expressions}
    return {
        "affinity": {
            kind: {
                REQUIRED: [
                    {"topologyKey": f"t{n}", "labelSelector": selector, "namespaceSelector": {}} for n in range(terms)
                ]
            }
        }
    }


def spread(count: int, expressions: int) -> Json:
    selector = {"matchExpressions": [{"key": "app", "operator": "Exists"}] * expressions}
    rule = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
    return {"topologySpreadConstraints": [rule] * count}


DIFFERENT = [f"0.{number:02d}" for number in range(90, 99)]
CASES: dict[str, Json] = {
    "plain": pod(request="1"),
    "8 shares": many(8, ["0.02", "0.01", "0.03"], gpus=5),
    "8 shares, 16 GPUs": many(8, DIFFERENT, gpus=16),
    "8 shares with labels": many(8, ["0.02", "0.05"], gpus=8, affinity="none", exclusion="none"),
    "8 shares, spread": many(8, ["0.02", "0.05", "0.03"], gpus=6, policy="spread"),
    "17 shares": many(17, DIFFERENT),
    "800 shares": many(800, DIFFERENT),
    "128 models": pod(request="1", model=",".join(f"*{number}z*" for number in range(128))),
    "one long glob": pod(request="1", model="*0*" + "*b*" * 84),
    "glob of sets": pod(request="1", model="[!a]*" * 51),
    "128 uuids": pod(request="1", uuid=",".join(f"GPU-{n:08d}-0-0" for n in range(128))),
    "64 containers share": pod(64, request="1", container=",".join(f"c{n}" for n in range(64))),
    "node affinity, 1 × 16": pod(request="1", spec=on_nodes(1, 16, 50)),
    "node affinity, 16 × 1": pod(request="1", spec=on_nodes(16, 1, 1)),
    "node affinity, 4 × 4": pod(request="1", spec=on_nodes(4, 4, 70)),
    "node affinity, 10000 × 1": pod(request="1", spec=on_nodes(10000, 1, 1)),
    "32 tolerations": pod(
        request="1", spec={"tolerations": [*({"key": f"x{n}", "operator": "Exists"} for n in range(29)), *TOLERATES]}
    ),
    "100000 tolerations": pod(request="1", spec={"tolerations": [{"key": "x", "operator": "Exists"}] * 100_000}),
    "pod affinity, 4 × 15": pod(request="1", spec=near("podAffinity", 4, 15)),
    "pod anti-affinity, 4 × 15": pod(request="1", spec=near("podAntiAffinity", 4, 15)),
    "spread, 4 × 15": pod(request="1", spec=spread(4, 15)),
    "64 host ports": pod(
        request="1", spec={"containers": [{"name": "c0", "ports": [{"hostPort": 9000 + n} for n in range(64)]}]}
    ),
    "50000 environment variables": pod(
        request="1", spec={"containers": [{"name": "c0", "env": [{"name": "x", "value": "y"}] * 50_000}]}
    ),
    "20000 volumes": pod(request="1", spec={"volumes": [{"name": "x", "emptyDir": {}}] * 20_000}),
    "everything": many(
        8, ["0.02", "0.05", "0.03"], gpus=6, model=",".join(f"*{number}*" for number in range(128)),
    ),
}  # fmt: skip
CASES["everything"]["spec"] |= {
    **spread(4, 6),
    "affinity": {**near("podAffinity", 4, 6)["affinity"], **on_nodes(4, 4, 70)["affinity"]},
}

# Findings of the search, shortened: pods whose last part alone does not fit, and very long manifests.
CASES["8 shares, the last too large"] = many(8, ["0.02", "0.05", "0.03"], gpus=6)
CASES["8 shares, the last too large"]["metadata"]["annotations"] |= {
    f"{contract.REQUEST}.c7": "0.01",
    f"{contract.GPUS}.c7": "16",
}
LONG: Json = {
    "containers": [
        {"name": f"c{number}", "env": [{"name": f"v{number}", "value": "x"} for number in range(64)]}
        for number in range(64)
    ]
}
CASES["4096 variables, spread"] = pod(request="1", spec={**LONG, **spread(4, 15)})
CASES["48 containers × 64 resources"] = pod(
    request="1",
    spec={
        "containers": [
            {
                "name": f"c{number}",
                "resources": {"requests": {f"example.com/r{number}-{index}": "1" for index in range(64)}},
            }
            for number in range(48)
        ]
    },
)
CASES["8 containers × 64 resources"] = pod(
    request="1", spec={"containers": CASES["48 containers × 64 resources"]["spec"]["containers"][:8]}
)
