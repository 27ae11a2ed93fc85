"""A full and uneven cluster in memory, so that no result for one node holds for another by luck."""

from __future__ import annotations

import random

from gpushare import contract
from webhook.store.memory_store import MemoryStore

GIB = 2**30
GPUS = 8


def cluster(count: int, *, percent: tuple[int, int] = (30, 99)) -> MemoryStore:
    """Return full nodes of forty kinds in ten zones, each with as many pods as GPUs, of fifty applications.

    percent: the range of the pods' requests; each has a GPU.
    """
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
                "request": draw.randrange(*percent),
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
        gpus = [
            {
                "uuid": uuid, "index": index, "model": f"NVIDIA H100 80GB HBM3 {number % 40}", "memory": 80 * GIB,
                "mode": "fractional", "healthy": True, "computeCapability": "9.0", "linkGroup": index // 4,
                "numaNode": index // 4,
            }
            for index, uuid in enumerate(uuids)
        ]  # fmt: skip
        gpunodes.append({"metadata": {"name": name}, "spec": {"allocations": entries}, "status": {"gpus": gpus}})
        labels = {contract.HOSTNAME_LABEL: name, "zone": f"z{number % 10}", "number": str(number)}
        taints = [{"key": f"team-{number}", "effect": "NoSchedule"} for number in range(3)]
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        nodes.append({"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}, "status": status})
    return MemoryStore(gpunodes, nodes, pods)
