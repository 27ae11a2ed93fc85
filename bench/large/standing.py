"""Pods with shares that exist before the measurement: admitted by the webhook, bound, and in the ledger."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator

from burst import calls, made, webhooks

from gpushare import contract

FEW = 500  # calls that this process sends sooner than others start
CHUNK = 5_000  # calls in memory at a time: their bodies are large
SETTLE_SECONDS, LOOK_SECONDS = 300.0, 2.0


def fill(server: calls.Server, wanted: Iterator[calls.Call], *, at_once: int = 64) -> float:
    """Send the calls in chunks, and return the seconds."""
    seconds = 0.0
    while chunk := list(itertools.islice(wanted, CHUNK)):
        if len(chunk) < FEW:
            began = time.monotonic()
            answers = calls.send(server, chunk, at_once=at_once)
            took = time.monotonic() - began
        else:
            took, answers = calls.burst(server, chunk, at_once=at_once, processes=2)
        calls.all_well(answers)
        seconds += took
    return seconds


def shares(server: calls.Server, namespace: str, count: int) -> float:
    """Create `count` pods with shares and bind them once the ledger has all; return the seconds of admission."""
    seconds = fill(server, made.pods(namespace, count, seed=count), at_once=32)
    webhooks.until(
        lambda: _confirmed(server, namespace) == count, "some shares were not confirmed", seconds=SETTLE_SECONDS
    )
    fill(server, _bindings(server, namespace))
    return seconds


def _confirmed(server: calls.Server, namespace: str) -> int:
    time.sleep(LOOK_SECONDS)
    nodes = calls.ask(server, calls.call("GET", contract.GPUNODE_PATH))["items"]
    entries = (entry for node in nodes for entry in (node.get("spec") or {}).get("allocations", ()))
    return sum(entry["pod"]["namespace"] == namespace and "reservedUntil" not in entry for entry in entries)


def _bindings(server: calls.Server, namespace: str) -> Iterator[calls.Call]:
    path = f"/api/v1/namespaces/{namespace}/pods"
    token = ""
    while True:
        page = calls.ask(server, calls.call("GET", f"{path}?limit=500{token}"))
        for pod in page["items"]:
            name, node = pod["metadata"]["name"], pod["metadata"]["annotations"][contract.NODE]
            binding = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": name},
                "target": {"apiVersion": "v1", "kind": "Node", "name": node},
            }
            yield calls.Call("POST", f"{path}/{name}/binding", json.dumps(binding).encode())
        if not page["metadata"].get("continue"):
            return
        token = f"&continue={page['metadata']['continue']}"
