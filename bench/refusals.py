"""How long the webhook thinks about a pod that fits nowhere, whatever its spec: 1,000 nodes × 8 GPUs by default.

Whoever may create pods may have one judged as often as he likes (`--dry-run=server`), and one that is judged keeps all
others waiting. So each pod here has as much of one thing as it may have, or far more than that, and asks for what no
node has. Timed is the processor's time of a whole review, after one that has read the pod's shape for the first time
(`first`) and again (`again`); the goal is 20 ms. A plain pod that fits nowhere is the baseline: `ratio` is against it.
Prints a table for people, then one JSON object a line per figure.

Run: python bench/refusals.py [--nodes 1000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import time
from collections.abc import Mapping
from typing import Any

from gpushare import contract
from webhook import metrics, review
from webhook.admission import Admission
from webhook.ledger.memory_store import MemoryStore
from webhook.ledger.reservation import Reservation

GIB = 2**30
GPUS = 8
GOAL_MS = 20.0
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

Json = dict[str, Any]


def cluster(count: int) -> MemoryStore:
    """Full nodes of forty kinds in ten zones; on each as many pods as GPUs, of fifty applications."""
    draw = random.Random(1)
    gpunodes, nodes, pods = [], [], []
    for number in range(count):
        name = f"n{number:05d}"
        uuids = [f"GPU-{number:08d}-0000-0000-0000-{index:012d}" for index in range(GPUS)]
        entries = []
        for index, uuid in enumerate(uuids):
            share = {
                "containers": ["c"],
                "gpus": [uuid],
                "request": draw.randrange(30, 99),
                "limit": 100,
                "memory": GIB,
            }
            holder = {"namespace": "others", "name": f"{name}-{index}", "uid": f"u{name}-{index}"}
            labels = {"affinity": f"l{draw.randrange(200)}"}
            entries.append({"id": f"a{name}-{index}", "pod": holder, "labels": labels, "shares": [share]})
            pods.append(
                {
                    "metadata": {**holder, "labels": {"app": f"app-{draw.randrange(50)}", "tier": f"t{index}"}},
                    "spec": {"nodeName": name, "containers": [{"name": "c"}]},
                }
            )
        cards = [
            {
                "uuid": uuid, "index": index, "model": f"NVIDIA H100 80GB HBM3 {number % 40}", "memory": 80 * GIB,
                "mode": "fractional", "healthy": True, "computeCapability": "9.0", "linkGroup": index // 4,
                "numaNode": index // 4,
            }
            for index, uuid in enumerate(uuids)
        ]  # fmt: skip
        gpunodes.append({"metadata": {"name": name}, "spec": {"allocations": entries}, "status": {"gpus": cards}})
        labels = {contract.HOSTNAME_LABEL: name, "zone": f"z{number % 10}", "number": str(number)}
        taints = [{"key": f"team-{one}", "effect": "NoSchedule"} for one in range(3)]
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        nodes.append({"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}, "status": status})
    return MemoryStore(gpunodes, nodes, pods)


TOLERATES = [{"key": f"team-{one}", "operator": "Exists"} for one in range(3)]


def pod(containers: int = 1, *, spec: Mapping[str, Any] | None = None, **annotations: str) -> Json:
    asked = {contract.PREFIX + key.replace("_", "-"): value for key, value in annotations.items()}
    made = [{"name": f"c{number}"} for number in range(containers)]
    metadata = {"name": "p", "namespace": "team", "labels": {"app": "mine"}, "annotations": asked}
    return {"metadata": metadata, "spec": {"containers": made, "tolerations": TOLERATES, **(spec or {})}}


def many(count: int, requests: list[str], *, gpus: int = 1, **more: str) -> Json:
    made = pod(count, **more)
    for number in range(count):
        made["metadata"]["annotations"] |= {
            f"{contract.REQUEST}.c{number}": requests[number % len(requests)],
            f"{contract.GPUS}.c{number}": str(gpus),
        }
    return made


def on_nodes(terms: int, expressions: int, values: int) -> Json:
    """Requirements that all hold but the last of each term."""
    holding = [
        {
            "key": "zone",
            "operator": "In",
            "values": [*(f"x{one}" for one in range(values)), *(f"z{one}" for one in range(10))],
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
    "16 shares": many(16, ["0.02", "0.01", "0.03"], gpus=5),
    "16 shares, 16 GPUs": many(16, DIFFERENT, gpus=16),
    "16 shares with labels": many(16, ["0.02", "0.05"], gpus=8, affinity="none", exclusion="none"),
    "16 shares, spread": many(16, ["0.02", "0.05", "0.03"], gpus=6, policy="spread"),
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
        16, ["0.02", "0.05", "0.03"], gpus=6, model=",".join(f"*{number}*" for number in range(128)),
    ),
}  # fmt: skip
CASES["everything"]["spec"] |= {
    **spread(4, 6),
    "affinity": {**near("podAffinity", 4, 6)["affinity"], **on_nodes(4, 4, 70)["affinity"]},
}


async def figures(count: int) -> dict[str, tuple[float, float, str]]:
    """Milliseconds of the first review and of the best of some more, and the outcome."""
    store = cluster(count)
    admission = Admission(store, Reservation(store, policy="fragmentation"), metrics.Metrics())
    await ask(admission, pod(request="0.99", memory="79Gi"))  # what is made at the first question of all
    found = {}
    for name, manifest in CASES.items():
        first, outcome = await ask(admission, manifest)
        again = min([(await ask(admission, manifest))[0] for _ in range(3)])
        found[name] = first, again, outcome
    return found


async def ask(admission: Admission, manifest: Json) -> tuple[float, str]:
    request: review.AdmissionRequest = {
        "uid": "u", "operation": "CREATE", "namespace": "team", "dryRun": True, "object": manifest,
    }  # fmt: skip
    began = time.process_time()
    answer = await admission.answer(request)
    said = answer.message or answer.audit.get("decision", "")
    return (time.process_time() - began) * 1000, f"{answer.outcome}: {said}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000)
    logging.disable(logging.CRITICAL)
    found = asyncio.run(figures(parser.parse_args().nodes))
    print(f"{'pod':32} {'first ms':>9} {'again ms':>9}  outcome")
    for name, (first, again, outcome) in found.items():
        print(f"{name:32} {first:9.1f} {again:9.1f}  {outcome[:80]}")
    _, plain, _ = found["plain"]
    for name, (first, again, _) in found.items():
        for when, value in (("first", first), ("again", again)):
            figure = {"figure": f"refusal.{name}.{when}", "value": round(value, 2), "unit": "ms", "against": "plain"}
            print(json.dumps({**figure, "ratio": round(value / plain, 2), "goal": GOAL_MS}))


if __name__ == "__main__":
    main()
