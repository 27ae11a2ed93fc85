"""Answers of the sample cluster's agents: their audits and metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from gpushare.gpunode import GpuNode
from kubectl_gpushare.planning import rightsizing
from kubectl_gpushare.planning.auditing import FOREIGN, UNLIMITED, ReportedAudit, parse_audit
from tests.kubectl_gpushare import sample
from tests.kubectl_gpushare.sample import GIB, uuid

SMALLER = "the node holds it to 20Gi, and the ledger says 10Gi: its agent has not seen the change yet"
WITHOUT = "it has a context on the GPU, and did not ask the arbiter: is LD_PRELOAD cleared, or the program static?"


def shares(node: GpuNode) -> Iterator[dict[str, Any]]:
    """Return every share of the node, with the ledger's limits in force for two processes."""
    for entry in node.allocations:
        for share in entry.shares:
            for gpu in share.gpu_uuids:
                yield {
                    "namespace": entry.pod.namespace,
                    "pod": entry.pod.name,
                    "containers": list(share.containers),
                    "gpu": gpu,
                    "requestPercent": share.request_percent,
                    "limitPercent": share.limit_percent,
                    "limitBytes": share.memory_bytes,
                    "enforcedRequestPercent": share.request_percent,
                    "enforcedLimitPercent": share.limit_percent,
                    "enforcedBytes": share.memory_bytes,
                    "chargedBytes": share.memory_bytes // 2,
                    "overheadBytes": GIB // 4,
                    "driverBytes": None,
                    "memoryEnforcement": "library",
                    "processes": 2,
                    "withLibrary": 2,
                    "inForce": True,
                    "reason": "",
                }


def process(pid: int, name: str, pod: str, state: str, used_gib: int, reason: str) -> dict[str, Any]:
    namespace, _, pod_name = pod.partition("/")
    return {
        "pid": pid,
        "name": name,
        "namespace": namespace,
        "pod": pod_name,
        "container": "main" if pod else "",
        "usedBytes": used_gib * GIB,
        "chargedBytes": 0,
        "state": state,
        "reason": reason,
    }


def audit(node: GpuNode) -> dict[str, Any]:
    """Return the audit of a node without problems."""
    gpus: list[dict[str, Any]] = [
        {"uuid": gpu.uuid, "index": gpu.index, "mode": gpu.mode.value, "processes": []} for gpu in node.gpus
    ]
    return {
        "node": node.name,
        "checkedAt": sample.NOW - 1.5,
        "problem": "",
        "blind": False,
        "gpus": gpus,
        "shares": list(shares(node)),
    }


def troubled() -> dict[str, Any]:
    """Return the audit of gpu-1: a share with wrong limits, an idle one, and two foreign processes."""
    document = audit(sample.nodes()[0])
    by_pod = {share["pod"]: share for share in document["shares"]}
    by_pod["small"] |= {"enforcedBytes": 20 * GIB, "inForce": False, "reason": SMALLER}
    by_pod["notebook"] |= {"processes": 0, "withLibrary": 0, "chargedBytes": 0, "overheadBytes": 0}
    by_pod["notebook"] |= dict.fromkeys(("enforcedRequestPercent", "enforcedLimitPercent", "enforcedBytes"))
    by_pod["trainer"] |= {"processes": 3, "memoryEnforcement": "none"}
    by_pod["llm"] |= {"memoryEnforcement": "driver", "driverBytes": by_pod["llm"]["limitBytes"]}
    gpus = {gpu["uuid"]: gpu for gpu in document["gpus"]}
    gpus[uuid("gpu-1", 0)]["processes"] = [
        process(4711, "python3", "ml/trainer", "limited", 20, ""),
        process(4712, "my tool", "ml/trainer", UNLIMITED, 6, WITHOUT),
    ]
    gpus[uuid("gpu-1", 3)]["processes"] = [process(99, "Xorg", "", FOREIGN, 1, "it belongs to no pod")]
    gpus[uuid("gpu-1", 2)]["processes"] = [process(98, "other", "", "unjudged", 1, "")]
    return document


def read(*documents: dict[str, Any]) -> dict[str, ReportedAudit]:
    """Return the audits as the plugin reads them."""
    return {document["node"]: parse_audit(json.dumps(document)) for document in documents}


def metrics() -> str:
    """Return the agents' measurements of four of the sample's pods."""
    seen = (  # namespace, pod, GPU, memory, compute, duration of the observation
        ("ml", "trainer", uuid("gpu-1", 0), int(20.1 * GIB), 0.31, 86_400.0),
        ("ml", "notebook", uuid("gpu-1", 0), GIB, 0.4, 7_200.0),
        ("ml", "llm", uuid("gpu-1", 1), 79 * GIB, 0.97, 7_200.0),
        ("ml", "llm", uuid("gpu-1", 2), 71 * GIB, 0.95, 7_200.0),
        ("web", "small", uuid("gpu-1", 3), 9 * GIB, None, 7_200.0),
        ("batch", "b", uuid("gpu-10", 0), GIB, 0.1, 60.0),
    )
    lines = []
    for namespace, pod, gpu, memory_bytes, ratio, seconds in seen:
        labels = f'{{node="gpu-1",namespace="{namespace}",pod="{pod}",containers="main",gpu="{gpu}"}}'
        lines += [
            f"{rightsizing.PEAK_MEMORY}{labels} {float(memory_bytes)}",
            f"{rightsizing.OBSERVED_SECONDS}{labels} {seconds}",
        ]
        lines += [] if ratio is None else [f"{rightsizing.PEAK_COMPUTE}{labels} {ratio}"]
    return "".join(f"{line}\n" for line in lines)
