"""Very many gated pods that all want the same GPU: the cost of their wait, and how soon the next one gets it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from burst import calls, webhooks

from gpushare import contract

TIMES = 5
PATIENCE_SECONDS = 60.0
LOOK_SECONDS = 0.02

Cpu = Callable[[], Mapping[str, float]]  # CPU seconds by process


@dataclass(frozen=True)
class Waited:
    """The number of waiting pods, CPU ms a second by process, and the seconds from a pod's end to the next one's
    start.
    """

    pods: int
    cpu_ms: Mapping[str, float]
    handed_over_seconds: tuple[float, ...]


def measure(server: calls.Server, namespace: str, node: str, count: int, cpu: Cpu, *, quiet_seconds: float) -> Waited:
    """Let `count` pods wait for the first GPU of a node, and delete its holder several times.

    quiet_seconds: the time for the placer to write every pod's reason, and then the same time without any event.
    """
    path = f"/api/v1/namespaces/{namespace}/pods"
    document = calls.ask(server, calls.call("GET", f"{contract.GPUNODE_PATH}/{node}"))
    uuid = document["status"]["gpus"][0]["uuid"]
    calls.all_well(calls.send(server, _pods(path, uuid, count + 1)))
    holder = _next(server, path, node, after="")
    time.sleep(quiet_seconds)
    before = cpu()
    time.sleep(quiet_seconds)
    after = cpu()
    handed_over = []
    for _ in range(TIMES):
        began = time.monotonic()
        calls.ask(server, calls.call("DELETE", f"{path}/{holder}", {"gracePeriodSeconds": 0}))
        holder = _next(server, path, node, after=holder)
        handed_over.append(time.monotonic() - began)
    spent = {name: (after[name] - before[name]) * 1000 / quiet_seconds for name in after}
    return Waited(count, spent, tuple(handed_over))


def _pods(path: str, uuid: str, count: int) -> Iterator[calls.Call]:
    for number in range(count):
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"waiting-{number:05}",
                "annotations": {contract.REQUEST: "1", contract.UUID: uuid},
            },
            "spec": {"containers": [{"name": "main", "image": "gpushare/sample:0.1"}]},
        }
        yield calls.Call("POST", path, json.dumps(manifest, separators=(",", ":")).encode())


def _next(server: calls.Server, path: str, node: str, *, after: str) -> str:
    """Return the name of the ungated pod that has the GPU, other than `after`."""
    holder = ""

    def is_there() -> bool:
        nonlocal holder
        document = calls.ask(server, calls.call("GET", f"{contract.GPUNODE_PATH}/{node}"))
        names = [entry["pod"].get("name", "") for entry in document.get("spec", {}).get("allocations", ())]
        holder = next((name for name in names if name not in ("", after)), "")
        return bool(holder) and _is_open(calls.ask(server, calls.call("GET", f"{path}/{holder}")))

    webhooks.until(is_there, "no pod has the GPU", seconds=PATIENCE_SECONDS)
    return holder


def _is_open(pod: Mapping[str, Any]) -> bool:
    gates = (gate["name"] for gate in pod["spec"].get("schedulingGates", ()))
    return contract.SCHEDULING_GATE not in gates
