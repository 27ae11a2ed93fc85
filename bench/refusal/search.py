"""The search for the most expensive pod: change knobs at random, and retain the changes that raise the cost."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

from gpushare import contract, policies
from refusal import pods

Json = dict[str, Any]
Knobs = dict[str, Any]
Cost = Callable[[Json], Awaitable[float]]

KEYS = ("zone", "number", contract.HOSTNAME_LABEL, "nobody-has-it")
LABELS = ("app", "tier", "nobody-has-it")
AMOUNTS = ("0.01", "0.02", "0.03", "0.05", "0.07", "0.1", "0.3", "0.9", "1")

# knob -> possible values
SETTINGS: dict[str, tuple[Any, ...]] = {
    "shares": (1, 1, 2, 4, 6, 7, 8),
    "first": AMOUNTS,
    "second": AMOUNTS,
    "third": AMOUNTS,
    "last": AMOUNTS,
    "gpus": (1, 2, 3, 4, 5, 6, 7, 8),
    "gpus of the last": (1, 2, 4, 5, 8, 16),
    "memory": ("", "100Mi", "1Gi", "79Gi"),
    "policy": ("", *policies.POLICIES),
    "affinity": ("", "l7", "none"),
    "anti-affinity": ("", "l7", "none"),
    "exclusion": ("", "none"),
    "models": (0, 1, 16, 64, 128),
    "pattern": ("*", "*{n}*", "*{n}z*", "nvidia*h100*{n}", "*a*b*c*d*{n}", "*1*2*3*{n}*", "*[0-9]*{n}"),
    "uuids": (0, 16, 128),
    "refused uuids": (0, 128),
    "terms": (0, 1, 2, 4, 8, 16),
    "expressions": (1, 2, 4, 8, 16),
    "operators": (("Lt",), ("Gt",), ("In",), ("NotIn",), ("Exists",), ("Gt", "NotIn"), ("In", "Lt")),
    "keys": (KEYS, KEYS[:1], KEYS[1:2], KEYS[1:3]),
    "values": (1, 4, 16, 64),
    "all terms fail": (False, True),
    "selector": (0, 1, 16),
    "near": (0, 1, 2, 4),
    "far": (0, 1, 2, 4),
    "spread": (0, 1, 2, 4),
    "selected": (1, 2, 4, 8, 15),
    "label operators": (("Exists",), ("NotIn",), ("In",), ("DoesNotExist",), ("Exists", "NotIn")),
    "topology": (KEYS, KEYS[:1], KEYS[1:2], KEYS[3:]),
    "skew": (1, 100),
    "tolerations": (0, 3, 3, 32),
    "ports": (0, 1, 64),
    "containers": (0, 0, 16, 48),
    "resources": (0, 1, 16, 64),
    "cpu": ("", "1", "1000"),
    "variables": (0, 64, 1024),
    "claims": (0, 256),
    "labels": (0, 64, 512),
}  # fmt: skip


def drawn(draw: random.Random) -> Knobs:
    """Return random settings of all knobs."""
    return {knob: draw.choice(settings) for knob, settings in SETTINGS.items()}


def turned(knobs: Knobs, draw: random.Random) -> Knobs:
    """Return the settings with some of them changed."""
    some = draw.sample(sorted(SETTINGS), draw.choice((1, 1, 2, 3, 6)))
    return {**knobs, **{knob: draw.choice(SETTINGS[knob]) for knob in some}}


def made(knobs: Knobs) -> Json:
    """Return the pod; together its settings may still exceed a limit, and then it is denied at almost no cost."""
    shares = knobs["shares"]
    amounts = [knobs[name] for name in ("first", "second", "third")]
    requests = [*(amounts[number % 3] for number in range(shares - 1)), knobs["last"]]
    manifest = pods.pod(shares)
    annotations = manifest["metadata"]["annotations"]
    for number, request in enumerate(requests):
        gpus = knobs["gpus of the last"] if number == shares - 1 else knobs["gpus"]
        annotations |= {f"{contract.REQUEST}.c{number}": request, f"{contract.GPUS}.c{number}": str(gpus)}
        if knobs["memory"]:
            annotations[f"{contract.MEMORY}.c{number}"] = knobs["memory"]
    for key in ("policy", "affinity", "anti-affinity", "exclusion"):
        if knobs[key]:
            annotations[contract.PREFIX + key] = knobs[key]
    if knobs["models"]:
        annotations[contract.MODEL] = ",".join(knobs["pattern"].format(n=n) for n in range(knobs["models"]))
    for key, count in ((contract.UUID, knobs["uuids"]), (contract.NOT_UUID, knobs["refused uuids"])):
        if count:
            annotations[key] = ",".join(f"GPU-{n:08d}-0000-0000-0000-{n % 8:012d}" for n in range(count))
    _constrain(manifest["spec"], knobs)
    manifest["metadata"]["labels"] |= {f"l{number}": "x" for number in range(knobs["labels"])}
    return manifest


def _constrain(spec: Json, knobs: Knobs) -> None:
    for number in range(knobs["containers"]):
        limits = {f"example.com/r{number}-{index}": "1" for index in range(knobs["resources"])}
        spec["containers"].append({"name": f"more{number}", "resources": {"requests": limits}})
    first = spec["containers"][0]
    if knobs["cpu"]:
        first["resources"] = {"requests": {"cpu": knobs["cpu"]}}
    first["ports"] = [{"hostPort": 9000 + number} for number in range(knobs["ports"])]
    first["env"] = [{"name": f"v{number}", "value": "x"} for number in range(knobs["variables"])]
    spec["volumes"] = [
        {"name": f"v{number}", "persistentVolumeClaim": {"claimName": f"c{number}"}}
        for number in range(knobs["claims"])
    ]
    kept = pods.TOLERATES if knobs["tolerations"] else []
    others = [{"key": f"team-{n % 5}", "effect": "NoExecute"} for n in range(knobs["tolerations"] - len(kept))]
    spec["tolerations"] = [*others, *kept]
    spec["nodeSelector"] = {"zone" if not number else f"k{number}": "z1" for number in range(knobs["selector"])}
    affinity = spec["affinity"] = {}
    if knobs["terms"]:
        count = max(1, min(knobs["expressions"], 16 // knobs["terms"]))
        terms = [[_of_node(knobs, term, number) for number in range(count)] for term in range(knobs["terms"])]
        if knobs["all terms fail"]:
            for term in terms:
                term[-1] = {"key": "number", "operator": "Lt", "values": ["0"]}
        required = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
        affinity["nodeAffinity"] = {pods.REQUIRED: required}
    for kind, knob in (("podAffinity", "near"), ("podAntiAffinity", "far")):
        if knobs[knob]:
            affinity[kind] = {
                pods.REQUIRED: [_related(knobs, number, namespaceSelector={}) for number in range(knobs[knob])]
            }
    spec["topologySpreadConstraints"] = [
        _related(knobs, number, maxSkew=knobs["skew"], whenUnsatisfiable="DoNotSchedule")
        for number in range(knobs["spread"])
    ]


def _of_node(knobs: Knobs, term: int, number: int) -> Json:
    operator = knobs["operators"][number % len(knobs["operators"])]
    key = knobs["keys"][(term + number) % len(knobs["keys"])]
    if operator in {"Gt", "Lt"}:
        values = [str(number + term)]
    else:
        values = [f"z{number}" for number in range(knobs["values"])] if operator != "Exists" else []
    return {"key": key, "operator": operator, "values": values}


def _related(knobs: Knobs, which: int, **more: Any) -> Json:
    expressions = []
    for number in range(knobs["selected"]):
        operator = knobs["label operators"][number % len(knobs["label operators"])]
        values = [f"t{which}"] if operator in {"In", "NotIn"} else []
        expressions.append({"key": LABELS[number % len(LABELS)], "operator": operator, "values": values})
    topology = knobs["topology"][which % len(knobs["topology"])]
    return {"topologyKey": topology, "labelSelector": {"matchExpressions": expressions}, **more}


def unlike(manifest: Json, number: int) -> Json:
    """Return an equivalent pod that no cache knows."""
    metadata, spec = manifest["metadata"], manifest["spec"]
    annotations = {**metadata["annotations"], contract.MIN_MEMORY: f"{number + 1}Mi"}
    tolerations = spec.get("tolerations", ())
    one_more = {"key": f"nonce-{number}", "operator": "Exists"}
    tolerations = [*tolerations[len(tolerations) == 32 :], one_more]  # 32 are the most that a pod may have
    return {"metadata": {**metadata, "annotations": annotations}, "spec": {**spec, "tolerations": tolerations}}


async def dearest(cost: Cost, *, seconds: float, seed: int, kept: int = 3) -> list[tuple[float, Json]]:
    """Return the most expensive pods found in this CPU time, each by a separate climb."""
    draw, climbs = random.Random(seed), list[tuple[float, Json]]()
    for _ in range(kept):
        until = time.process_time() + seconds / kept
        best, at = drawn(draw), 0.0
        while time.process_time() < until:
            other = turned(best, draw) if at and draw.random() < 0.9 else drawn(draw)
            spent = await cost(made(other))
            if spent > at:
                # repeated, because the machine may have been busy for a moment
                spent = min(spent, await cost(made(other)))
            if spent > at:
                best, at = other, spent
        climbs.append((at, made(best)))
    return sorted(climbs, key=lambda climb: -climb[0])
