"""What is known of one node's GPUs, by four witnesses that must agree: ledger, NVML, audit, and the containers."""

from __future__ import annotations

import collections
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare import contract, ledger
from gpushare.allocation import Allocation, GivenShare, Isolation
from gpushare.gpunode import Gpu, Mode
from lab import gpushare, lab_errors
from tests.e2e.isolation_node import Node

LISTING = """
import json, pynvml as nvml
nvml.nvmlInit()
handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
print(json.dumps({nvml.nvmlDeviceGetUUID(handle): [
    (process.pid, process.usedGpuMemory or 0) for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
] for handle in handles}))
"""
AS_GIVEN = (Isolation.NONE, Isolation.MIG)  # what these shares may use is not what they request
POD = re.compile(r"/pod([0-9a-f-]{36})/")


@dataclass(frozen=True)
class Running:
    """A pod whose containers are ready. seen: its program's last report, None before the first."""

    name: str
    uid: str
    seen: Any


@dataclass(frozen=True)
class Comparison:
    """A sentence for each difference between two views, and the number of pods compared, by kind."""

    contradictions: list[str]
    compared: collections.Counter[str]


def compare(node: Node) -> Comparison:
    """Compare what the witnesses say now."""
    none = collections.Counter[str]()
    try:
        pods, gpunode, audit = node.user.pods(), node.user.gpunode(), node.audit()
        running = [_running(node, pod) for pod in pods if gpushare.is_ready(pod)]
    except (lab_errors.LabError, json.JSONDecodeError) as error:  # a pod has ended meanwhile, or the agent restarts
        return Comparison([f"not known: {error}"], none)
    shares = [entry for entry in gpunode.allocations if not entry.is_backfill_reservation]
    entries = {entry.pod.uid: entry for entry in shares if entry.pod.namespace == node.user.namespace}
    gpus = gpunode.gpu_by_uuid()
    differences = [
        *ledger.violations(gpunode),
        *_of_ledger(pods, entries),
        *_of_containers(running, entries, gpus),
        *_of_nvml(node, entries, gpus),
        *_of_audit(audit, running, entries),
    ]
    kinds = (str(entries[pod.uid].labels.isolation) if pod.uid in entries else "device" for pod in running)
    return Comparison(differences, collections.Counter(kinds))


def _running(node: Node, pod: dict[str, Any]) -> Running:
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{node.user.namespace}/pods/{metadata['name']}/log?tailLines=5"
    lines = [line for line in node.user.access.text(path).splitlines() if line.startswith("{")]
    return Running(metadata["name"], metadata["uid"], json.loads(lines[-1]) if lines else None)


def _of_ledger(pods: list[dict[str, Any]], entries: Mapping[str, Allocation]) -> Iterator[str]:
    """Yield pods without their allocation, and allocations without their pod."""
    notes = {pod["metadata"]["uid"]: pod["metadata"].get("annotations", {}) for pod in pods}
    for uid, entry in entries.items():
        if uid not in notes:
            yield f"the ledger has {entry.pod}, which is gone"
        elif (told := notes[uid].get(contract.ISOLATION_GIVEN) or "arbiter") != str(entry.labels.isolation):
            yield f"{entry.pod} is told that it has isolation {told}, and has {entry.labels.isolation}"
    for pod in pods:
        uid = pod["metadata"]["uid"]
        ends = "deletionTimestamp" in pod["metadata"] or pod["status"].get("phase") in {"Failed", "Succeeded"}
        if contract.ALLOCATION in notes[uid] and uid not in entries and not ends:
            yield f"{pod['metadata']['name']} has an allocation that is not in the ledger"


def _of_containers(running: list[Running], entries: Mapping[str, Allocation], gpus: Mapping[str, Gpu]) -> Iterator[str]:
    for pod in running:
        if pod.seen is None:
            yield f"{pod.name} has reported nothing"
        elif pod.uid in entries:
            entry = entries[pod.uid]
            (share,) = entry.shares
            kind = entry.labels.isolation
            total = gpus[share.gpu_uuids[0]].memory_bytes if kind is Isolation.NONE else _memory_bytes(share)
            told = {"client": int(kind is Isolation.MPS), "total": total}
            if pod.seen != told:
                yield f"{pod.name} with isolation {kind} sees {pod.seen}, and should see {told}"


def _of_nvml(node: Node, entries: Mapping[str, Allocation], gpus: Mapping[str, Gpu]) -> Iterator[str]:
    environment = {**os.environ, "SIMGPU_DIR": str(node.where.gpus(node.node)), "LD_LIBRARY_PATH": str(gpushare.DRIVER)}
    done = subprocess.run([sys.executable, "-c", LISTING], env=environment, capture_output=True, text=True, check=True)
    for uuid, processes in json.loads(done.stdout).items():
        used = collections.Counter[str]()
        for pid, used_bytes in processes:
            used[_pod_of(pid)] += used_bytes
        for uid, used_bytes in used.items():
            entry = entries.get(uid)
            if entry is None:
                if gpus[uuid].mode is Mode.FRACTIONAL and uid:
                    yield f"the pod {uid} uses {uuid} without a share"
                continue
            granted = sum(_memory_bytes(share) for share in entry.shares if uuid in share.gpu_uuids)
            if not granted:
                yield f"{entry.pod} uses {uuid}, where it has no share"
            elif used_bytes > granted and entry.labels.isolation is not Isolation.NONE:
                yield f"{entry.pod} uses {used_bytes} bytes of {uuid}, of {granted}"


def _memory_bytes(share: GivenShare) -> int:
    """Return the memory that the processes of a share may use: all of its MIG device, if it has one."""
    return share.mig.memory_bytes if share.mig is not None else share.memory_bytes


def _pod_of(pid: int) -> str:
    """Return the UID of a process's pod; "" if it has ended."""
    try:
        found = POD.search(Path(f"/proc/{pid}/cgroup").read_text())
    except OSError:
        return ""
    return found[1] if found else ""


def _of_audit(audit: Any, running: list[Running], entries: Mapping[str, Allocation]) -> Iterator[str]:
    if audit["summary"]["inForce"] is not True:
        yield f"the audit says: {audit['summary']['sentence']}"
    for stray in audit["processes"]:
        yield f"the audit names {stray['name']} of {stray['pod']['name'] or 'no pod'}: {stray['reason']}"
    items = {item["pod"]["name"]: item for item in audit["items"]}
    for pod in running:
        if pod.uid in entries:
            (share,) = entries[pod.uid].shares
            item = items.get(pod.name)
            if item is None:
                yield f"the audit does not know {pod.name}"
            elif item["processes"] == 0 or item["ledger"]["memoryBytes"] != share.memory_bytes:
                yield f"the audit has {item['processes']} processes of {pod.name}, with {item['ledger']}"
            elif share.mig is not None and item["enforced"]["memoryBytes"] != share.mig.memory_bytes:
                yield f"{pod.name} has limits {item['enforced']}, and should have all of {share.mig}"
            elif entries[pod.uid].labels.isolation not in AS_GIVEN and item["enforced"] != item["ledger"]:
                yield f"{pod.name} has limits {item['enforced']}, and should have {item['ledger']}"
