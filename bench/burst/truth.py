"""Checks the pods, the current ledger, and every version that the ledger ever had."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib import parse

from burst import calls
from gpushare import codec, contract, ledger

REPLAY_SECONDS = 3


@dataclass(frozen=True)
class Found:
    placed: int
    gated: int
    writes: int
    nodes_used: int
    problems: tuple[str, ...]


def check(server: calls.Server, namespace: str, expected: int, since: str) -> Found:
    """Check a burst after all its shares are confirmed. `since` is the GPUNodes' resourceVersion before the burst.

    Shares of other namespaces count only towards a GPU's capacity.
    """
    problems: list[str] = []
    pods = calls.ask(server, calls.call("GET", f"/api/v1/namespaces/{namespace}/pods"))["items"]
    if len(pods) != expected:
        problems.append(f"there are {len(pods)} pods, {expected} were created")
    claimed: dict[str, tuple[str, str, str]] = {}
    gated = 0
    for pod in pods:
        metadata, spec = pod["metadata"], pod["spec"]
        annotations = metadata.get("annotations", {})
        waits = any(gate["name"] == contract.SCHEDULING_GATE for gate in spec.get("schedulingGates", ()))
        if waits and annotations.get(contract.REASON) and contract.ALLOCATION not in annotations:
            gated += 1
        elif waits or contract.ALLOCATION not in annotations:
            problems.append(f"{metadata['name']} is neither placed nor gated with a reason")
        elif spec.get("nodeSelector", {}).get(contract.HOSTNAME_LABEL) != annotations[contract.NODE]:
            problems.append(f"{metadata['name']} is not pinned to its node")
        else:
            uuids = annotations[contract.GPU_UUIDS]
            claimed[annotations[contract.ALLOCATION]] = (metadata["uid"], annotations[contract.NODE], uuids)
    held: dict[str, tuple[str, str, str]] = {}
    for item in calls.ask(server, calls.call("GET", contract.GPUNODE_PATH))["items"]:
        node = codec.read(item)
        problems += [*ledger.violations(node), *node.problems]
        for entry in node.allocations:
            if entry.pod.namespace != namespace:
                continue
            if entry.reserved_until is not None:
                problems.append(f"{entry.id} on {node.name} is not confirmed")
            held[entry.id] = (entry.pod.uid, node.name, ",".join(entry.gpu_uuids))
    if held != claimed:
        odd = sorted({*held.items()} ^ {*claimed.items()})
        problems.append(f"ledger and pods differ in {len(odd)} places: {odd[:2]}")
    versions = 0
    for event in _replayed(server, since):
        versions += 1
        problems += ledger.violations(codec.read(event))
    used = len({node for _, node, _ in held.values()})
    return Found(len(claimed), gated, versions, used, tuple(problems))


def version(server: calls.Server) -> str:
    """Return the resourceVersion at which a later replay begins."""
    listing = calls.ask(server, calls.call("GET", f"{contract.GPUNODE_PATH}?limit=1"))
    return str(listing["metadata"]["resourceVersion"])


def _replayed(server: calls.Server, since: str) -> Iterator[dict[str, Any]]:
    """Yield every GPUNode version stored since then. A watch replays them afterwards, so the burst does not pay for
    it.
    """
    address = parse.urlsplit(server.url)
    line = http.client.HTTPSConnection(str(address.hostname), address.port, context=server.tls(), timeout=60)
    query = f"watch=1&resourceVersion={since}&timeoutSeconds={REPLAY_SECONDS}"
    try:
        line.request("GET", f"{contract.GPUNODE_PATH}?{query}")
        for text in line.getresponse():
            event = json.loads(text)
            if event["type"] == "ERROR":
                raise SystemExit(f"the watch cannot be replayed: {event['object'].get('message')}")
            yield event["object"]
    finally:
        line.close()
