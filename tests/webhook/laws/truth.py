"""The laws of the ledger, checked on the stored state; violations are sentences."""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterator
from typing import Any

from gpushare import codec, contract, isolation, ledger, mig_shares, pod
from gpushare import request as requests
from gpushare.allocation import Allocation
from gpushare.gpunode import GpuNode
from tests.webhook.laws.simulated_api import GPUNODES, PODS, SimulatedApi

PodJson = dict[str, Any]


def nodes(api: SimulatedApi) -> list[GpuNode]:
    return [codec.read(document) for document in api.all(GPUNODES)]


def living(api: SimulatedApi) -> list[PodJson]:
    return [manifest for manifest in api.all(PODS) if not pod.is_terminal(manifest)]


def is_placed(manifest: PodJson) -> bool:
    return contract.SCHEDULING_GATE not in pod.gates(manifest)


def broken_now(api: SimulatedApi, *, forgotten: Collection[str] = ()) -> Iterator[str]:
    """Yield violations of laws that hold after every step.

    forgotten: nodes whose GPUNode was deleted under its pods; their shares may be missing until they are restored.
    """
    yield from _promised_too_much(api)
    entries: dict[str, list[tuple[GpuNode, Allocation]]] = collections.defaultdict(list)
    for node in nodes(api):
        yield from ledger.violations(node)
        yield from node.problems
        for entry in node.allocations:
            entries[entry.id].append((node, entry))
    holders: dict[str, str] = {}
    for holder in living(api):
        if not is_placed(holder):
            continue
        who = "/".join(pod.namespaced_name(holder))
        identity = pod.annotations_of(holder)[contract.ALLOCATION]
        if identity in holders:
            yield f"{who} and {holders[identity]} both hold {identity}"
        holders[identity] = who
        if not entries[identity] and (pod.annotations_of(holder)[contract.NODE] in forgotten or _on_gone(api, holder)):
            continue
        if len(entries[identity]) != 1:
            yield f"{who} lives and its allocation {identity} is in the ledger {len(entries[identity])} times"
            continue
        yield from _unlike(holder, who, *entries[identity][0])


def broken_at_rest(api: SimulatedApi, *, forgotten: Collection[str] = ()) -> Iterator[str]:
    """Yield violations of laws that hold once no fault has happened for a while, such as shares of pods that are gone.

    forgotten: nodes whose GPUNode was deleted while pods were placed on it.
    """
    alive = {pod.uid(manifest): manifest for manifest in living(api)}
    for node in nodes(api):
        for entry in node.allocations:
            holder = alive.get(entry.pod.uid)
            if not entry.pod.uid:
                yield f"{entry.id} for {entry.pod} is still unconfirmed"
            elif holder is None:
                yield f"{entry.id} is kept for {entry.pod}, which is gone"
            elif entry.is_backfill_reservation and not is_placed(holder):
                continue  # room that is kept for it until it fits
            elif not is_placed(holder) or pod.annotations_of(holder).get(contract.ALLOCATION) != entry.id:
                yield f"{entry.id} is kept for {entry.pod}, which does not use it"
    waiting = [manifest for manifest in alive.values() if not is_placed(manifest)]
    if waiting and all(_fits(api, manifest, forgotten) for manifest in waiting):
        yield f"{[pod.namespaced_name(manifest) for manifest in waiting]} wait although there is room for each"


def _promised_too_much(api: SimulatedApi) -> Iterator[str]:
    """Yield GPUs that were promised to too many living pods, by the pods' annotations, not by the ledger."""
    compute: collections.Counter[str] = collections.Counter()
    memory: collections.Counter[str] = collections.Counter()
    kinds: dict[str, set[str]] = collections.defaultdict(set)
    gpus = {gpu.uuid: gpu for node in nodes(api) for gpu in node.gpus}
    total_bytes = {uuid: gpu.memory_bytes for uuid, gpu in gpus.items()}
    slices: collections.Counter[tuple[str, int]] = collections.Counter()  # of GPUs, by how many MIG devices have them
    for manifest in filter(is_placed, living(api)):
        (demand,) = requests.parse(manifest).demands
        for uuid in pod.annotations_of(manifest)[contract.GPU_UUIDS].split(","):
            compute[uuid] += demand.share.request_percent
            memory[uuid] += demand.share.memory.on(total_bytes.get(uuid, 0))
            if (device := pod.annotations_of(manifest).get(contract.MIG_DEVICE)) and uuid in gpus:
                slices.update((uuid, place) for place in mig_shares.read_device(gpus[uuid], device).places)
            kinds[uuid].add(pod.annotations_of(manifest).get(contract.ISOLATION_GIVEN, "arbiter"))
    for uuid in compute:
        if compute[uuid] > 100 or memory[uuid] > total_bytes.get(uuid, memory[uuid]):
            yield f"living pods were given {compute[uuid]}% and {memory[uuid]} bytes of {uuid}"
        if len(kinds[uuid]) > 1:
            yield f"living pods share {uuid} with isolation {kinds[uuid]}"

    yield from (
        f"living pods have MIG devices that overlap on {uuid}" for (uuid, _), count in slices.items() if count > 1
    )


def _on_gone(api: SimulatedApi, manifest: PodJson) -> bool:
    """Whether its GPUs no longer exist."""
    there = {gpu.uuid for node in nodes(api) for gpu in node.gpus}
    return not there & set(pod.annotations_of(manifest)[contract.GPU_UUIDS].split(","))


def _unlike(manifest: PodJson, who: str, node: GpuNode, entry: Allocation) -> Iterator[str]:
    annotations = pod.annotations_of(manifest)
    holder = entry.pod
    if (
        holder.uid != pod.uid(manifest)
        if holder.uid
        else (holder.namespace, holder.name or who.split("/")[1]) != tuple(who.split("/"))
    ):
        yield f"{who} uses {entry.id}, which is held by {holder}"
    asked, kind = annotations.get(contract.ISOLATION, "arbiter"), entry.labels.isolation
    if kind != annotations.get(contract.ISOLATION_GIVEN, "arbiter") or asked not in {"auto", kind}:
        yield f"{who} asked for {asked} and has {kind}"
    if [annotations.get(contract.MIG_DEVICE, "")] != [str(share.mig or "") for share in entry.shares]:
        yield f"{who} has the MIG device {annotations.get(contract.MIG_DEVICE)} and not that of its allocation"
    if annotations[contract.NODE] != node.name:
        yield f"{who} is on {annotations[contract.NODE]} and its allocation on {node.name}"
    if annotations[contract.GPU_UUIDS] != ",".join(entry.gpu_uuids):
        yield f"{who} uses {annotations[contract.GPU_UUIDS]} and holds {entry.gpu_uuids}"
    percents = [demand.share.request_percent for demand in requests.parse(manifest).demands]
    if percents != [share.request_percent for share in entry.shares]:
        yield f"{who} asked for {percents} and holds {entry.shares}"


def _fits(api: SimulatedApi, manifest: PodJson, forgotten: Collection[str]) -> bool:
    """Whether there is room for the pod and its gang; for pods that request one GPU."""
    request = requests.parse(manifest)
    (demand,), kinds = request.demands, isolation.kinds(request)
    share = demand.share
    group = pod.annotations_of(manifest).get(contract.GROUP)
    together = [other for other in living(api) if group and pod.annotations_of(other).get(contract.GROUP) == group]
    if group and len(together) < int(pod.annotations_of(manifest)[contract.GROUP_SIZE]):
        return False
    waiting = sum(1 for other in together if not is_placed(other)) or 1
    room = 0
    # A placed pod that is reinvoked after its GPUNode was deleted keeps its node selector, because its origin is
    # unknown.
    pin = (manifest["spec"].get("nodeSelector") or {}).get(contract.HOSTNAME_LABEL)
    for node in nodes(api):
        if pin in forgotten and pin != node.name:
            continue
        used = ledger.use(node)
        for gpu in node.gpus:
            if any(holder.labels.isolation not in kinds for holder in used[gpu.uuid].holders):
                continue
            memory_bytes = share.memory.on(gpu.memory_bytes)
            by_compute = (100 - used[gpu.uuid].request_percent) // max(share.request_percent, 1)
            by_memory = (gpu.memory_bytes - used[gpu.uuid].memory_bytes) // max(memory_bytes, 1)
            room += min(by_compute, by_memory)
    return room >= waiting
