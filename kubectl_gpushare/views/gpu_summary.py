"""GpuSummary: one GPU with its use, which all views share; sums of several, and sentences about them and the ledger."""

from __future__ import annotations

import dataclasses
import functools
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence

from gpushare import contract, gpu_capacity, ledger, policies, quantity
from gpushare.allocation import Allocation
from gpushare.gpunode import CordonNote, Gpu, GpuNode, Mode
from gpushare.policies import Typical, TypicalOf
from gpushare.quantity import counted
from gpushare.whatif.unavailable_nodes import UnavailableNode
from kubectl_gpushare import plugin_errors
from kubectl_gpushare.source.live_usage import GivenDevices, Used
from kubectl_gpushare.source.snapshot import Snapshot

NO_NODES = (
    "No node has reported GPUs: does the agent run on the GPU nodes? "
    f"Look with `kubectl -n {contract.SYSTEM_NAMESPACE} get pods -o wide`."
)
_NO_NOTE = CordonNote()
_UNREAD = Snapshot(())
_NOWHERE: Mapping[str, UnavailableNode] = types.MappingProxyType({})
_TYPICAL = policies.median_request(policies.DEFAULT_MIX)
_MIN_UUID = 4  # characters of a UUID that may stand for it
_WHY = re.compile(r"(once it is not used|which failed|it is being changed).*")


@dataclasses.dataclass(frozen=True, slots=True)
class GpuSummary:
    """A GPU of a node."""

    node: str
    gpu: Gpu
    used: ledger.GpuUse
    holders: tuple[Allocation, ...] = ()  # allocations with a share of it
    holds: tuple[Allocation, ...] = ()  # backfill reservations on it
    gone: bool = False  # allocations name it, but the node no longer has it
    free: tuple[int, int] = (0, 0)  # compute in per cent and memory in bytes for a new share now
    parts: tuple[float, float] = (0.0, 0.0)  # `(free, stranded)`, 0 to 1
    typical: Typical = _TYPICAL  # the median request, as fractions of the GPU
    unavailable: UnavailableNode | None = None  # why its node takes no pods now
    waits: str = ""  # why a pending change of its mode is not done yet
    measured: Used | None = None  # the use by its shares; None if unknown, or in another mode
    devices: tuple[GivenDevices, ...] | None = None  # that the kubelet gave to containers; None if unknown
    note: CordonNote = _NO_NOTE  # who cordoned it, when and why
    kinds: gpu_capacity.Kinds = gpu_capacity.ARBITER  # of isolation that pods which name none may get

    @property
    def name(self) -> str:
        return f"{self.node}/{self.gpu.uuid if self.gone else self.gpu.index}"

    @property
    def shared(self) -> bool:
        return self.gpu.mode is Mode.FRACTIONAL and not self.gone

    @property
    def over_committed(self) -> bool:
        return self.used.request_percent > 100 or self.used.memory_bytes > self.gpu.memory_bytes

    @property
    def largest(self) -> tuple[int, int] | None:
        """The largest share a pod without labels could get now (per cent, bytes); None if it could get none."""
        return None if self.gone or self.unavailable else gpu_capacity.largest(self.gpu, self.used, self.kinds)

    @property
    def isolation(self) -> str:
        """The isolation of the shares on it, joined by "," if they differ; empty without shares."""
        return ",".join(ledger.isolations(self.used))

    @property
    def exclusion(self) -> str:
        return gpu_capacity.excludes(self.used)

    @property
    def reason(self) -> str:
        return "; ".join(filter(None, (f"cordoned {self.note}" if str(self.note) else "", self._reason)))

    @property
    def _reason(self) -> str:
        if self.gpu.health_reason:
            return self.gpu.health_reason
        if self.unavailable:
            return self.unavailable.sentence
        if self.gpu.unowned:
            return "belongs to another device plugin, and gpushare does not borrow it now"
        if self.waits:
            return self.waits
        if self.gpu.cordoned and self.gpu.pending_mode is None:
            return f"takes nothing new until `kubectl gpushare uncordon gpu {self.name}`"
        if self.exclusion:
            return f"takes only pods with the exclusion label {self.exclusion}, as those on it have"
        if self.isolation and not gpu_capacity.is_open(self.gpu, self.used, self.kinds):
            return f"takes only pods with isolation {self.isolation}, as those on it have"
        if self.shared and not self.used.holders and not gpu_capacity.is_open(self.gpu, self.used, self.kinds):
            if self.gpu.isolations:
                return f"takes only pods that ask for isolation {' or '.join(self.gpu.isolations)}"
            return "takes no shares: it supports no isolation that its configuration allows"
        if not self.holds:
            return ""
        return f"freed capacity is reserved for {', '.join(sorted(str(hold.pod) for hold in self.holds))}"

    @property
    def statuses(self) -> tuple[str, ...]:
        if self.gone:
            return ("Gone",)
        words = []
        if self.over_committed:
            words.append("OverCommitted")
        if not self.gpu.healthy:
            words.append("Unhealthy")
        if self.gpu.pending_mode is not None:
            words.append("Changing")
        elif self.gpu.cordoned:
            words.append("Cordoned")
        if self.unavailable:
            words.append(self.unavailable.word)
        if self.exclusion:
            words.append("Excluding")
        if self.holds:
            words.append("Held")
        return tuple(words)


@dataclasses.dataclass(frozen=True, slots=True)
class Sum:
    """The sum of several GPUs; compute and memory count only GPUs that take shares by annotation."""

    gpus: int
    pods: int
    request_percent: int
    total_percent: int
    memory_bytes: int
    total_memory_bytes: int
    free: tuple[int, int]  # compute in per cent and memory in bytes available for new shares in total
    free_gpus: float  # free part, in GPUs: the mean of compute and memory
    stranded_gpus: float  # the part of that which the typical request cannot use
    largest: GpuSummary | None  # the GPU on which the largest share still fits

    @property
    def fragmentation(self) -> float:
        return self.stranded_gpus / self.free_gpus if self.free_gpus > 0 else 0.0


def summarize(
    nodes: Iterable[GpuNode], around: Snapshot = _UNREAD, absent: Mapping[str, UnavailableNode] = _NOWHERE
) -> list[GpuSummary]:
    """Return all GPUs of the nodes, by node name and index; missing GPUs come last on their node.

    around: has the profile, and the usage if it was measured. absent: nodes that take no pods.
    """
    gpus: list[GpuSummary] = []
    typical_of, kinds, usage = around.typical_of, around.kinds, around.usage
    known_parts: _Parts = {}
    medians = functools.cache(lambda gpu_bytes: policies.median_request(typical_of(gpu_bytes)))
    for node in sorted(nodes, key=lambda node: natural(node.name)):
        used = ledger.use(node)
        there = sorted(node.gpus, key=lambda gpu: gpu.index)
        unavailable = absent.get(node.name)
        gpus += [_gpu(node, gpu, used[gpu.uuid], known_parts, unavailable, typical_of, kinds, medians) for gpu in there]
        if len(used) > len(there):
            known = {gpu.uuid for gpu in there}
            gpus += [
                GpuSummary(node.name, _gone(uuid), use, *_split(use), gone=True)
                for uuid, use in sorted(used.items())
                if uuid not in known
            ]
    if usage is None:
        return gpus
    return [
        dataclasses.replace(gpu, measured=usage.of_gpu(gpu.node, gpu.gpu.uuid))
        if gpu.shared
        else dataclasses.replace(gpu, devices=usage.devices_of(gpu.node, gpu.gpu.uuid))
        for gpu in gpus
    ]


# (free compute, free memory, memory, is open) of a GPU -> its parts: among thousands of GPUs many are equal
_Parts = dict[tuple[int, int, int, bool], tuple[float, float]]


def _gpu(
    node: GpuNode,
    gpu: Gpu,
    used: ledger.GpuUse,
    known: _Parts,
    unavailable: UnavailableNode | None,
    typical_of: TypicalOf,
    kinds: gpu_capacity.Kinds,
    medians: Callable[[int], Typical],
) -> GpuSummary:
    free = (0, 0) if unavailable else gpu_capacity.free(gpu, used)
    key = (*free, gpu.memory_bytes, gpu_capacity.is_open(gpu, used, kinds))
    if key not in known:
        known[key] = gpu_capacity.stranded(gpu, used, typical_of, kinds) if any(free) else (0.0, 0.0)
    why = why_not_yet(node, gpu) if gpu.pending_mode is not None else ""
    glue = " " if why.startswith("once") else ", " if why.startswith("which") else ": "
    waits = f"is to be {gpu.pending_mode}{glue}{why}" if why else ""
    size = medians(gpu.memory_bytes)
    note = node.cordon_notes.get(gpu.uuid, _NO_NOTE) if gpu.cordoned else _NO_NOTE
    return GpuSummary(
        node.name, gpu, used, *_split(used), False, free, known[key], size, unavailable, waits, note=note, kinds=kinds
    )


def why_not_yet(node: GpuNode, gpu: Gpu) -> str:
    """Return the agent's reason why a GPU's change of mode is not done yet, without the new mode."""
    pending = node.condition(contract.CONDITION_CONFIG_PENDING)
    after = pending.message.partition(f"({gpu.uuid}) ")[2] if pending is not None else ""
    said = re.split(r"; GPU \d+ \(GPU-", after)[0]  # the message has a sentence per GPU
    match = _WHY.search(said)
    return match[0] if match else said or "its agent does not say why not yet"


def _split(used: ledger.GpuUse) -> tuple[tuple[Allocation, ...], tuple[Allocation, ...]]:
    holds = tuple([holder for holder in used.holders if holder.is_backfill_reservation])
    if not holds:
        return used.holders, holds
    return tuple([holder for holder in used.holders if not holder.is_backfill_reservation]), holds


def _gone(uuid: str) -> Gpu:
    return Gpu(uuid, -1, "", 0, healthy=False, health_reason="the node has it no more")


def names(nodes: Iterable[GpuNode]) -> dict[str, str]:
    return {gpu.gpu.uuid: gpu.name for gpu in summarize(nodes)}


def add_up(gpus: Sequence[GpuSummary]) -> Sum:
    shared = [gpu for gpu in gpus if gpu.shared]
    fitting = [gpu for gpu in shared if gpu.largest]
    return Sum(
        gpus=sum(not gpu.gone for gpu in gpus),
        pods=len({holder.id for gpu in gpus for holder in gpu.holders})
        + len({(given.namespace, given.pod) for gpu in gpus for given in gpu.devices or ()}),
        request_percent=sum(gpu.used.request_percent for gpu in shared),
        total_percent=100 * len(shared),
        memory_bytes=sum(gpu.used.memory_bytes for gpu in shared),
        total_memory_bytes=sum(gpu.gpu.memory_bytes for gpu in shared),
        free=(sum(gpu.free[0] for gpu in shared), sum(gpu.free[1] for gpu in shared)),
        free_gpus=sum(gpu.parts[0] for gpu in shared),
        stranded_gpus=sum(gpu.parts[1] for gpu in shared),
        largest=max(fitting, key=lambda gpu: gpu.free, default=None),
    )


def natural(name: str) -> list[tuple[int, int | str]]:
    """Return a sort key by which `node-2` comes before `node-10`."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part]


def named(gpus: Iterable[GpuSummary], name: str) -> GpuSummary:
    """Return the GPU of that name: NODE/INDEX, or a UUID or the beginning of one. Raises `KubectlNotFound`."""

    def matches(gpu: GpuSummary) -> bool:
        if "/" in name:
            return gpu.name == name
        uuid = gpu.gpu.uuid
        bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
        return uuid == name or (len(name) >= _MIN_UUID and (uuid.startswith(name) or bare.startswith(name)))

    matching = [gpu for gpu in gpus if matches(gpu)]
    if not matching:
        raise plugin_errors.KubectlNotFound(
            f'no GPU "{name}": name it NODE/INDEX or by its UUID; `kubectl gpushare top` lists them'
        )
    if len(matching) > 1:
        names = ", ".join(f"{gpu.name} ({gpu.gpu.uuid})" for gpu in matching[:5])
        raise plugin_errors.KubectlNotFound(f'"{name}" is the beginning of {len(matching)} UUIDs: {names}')
    return matching[0]


def free_sentence(all_gpus: Sequence[GpuSummary], total: Sum) -> str:
    """Return a sentence such as `free 11.4 with 800Gi of 40 GPUs, 53% of it stranded: 38 GPUs have …`."""
    if not total.total_percent:
        return "no GPU takes shares by annotation"
    if not any(total.free):
        return f"nothing is free on {counted(total.gpus, 'GPU')}"
    percent, memory_bytes = total.free
    size = f"{quantity.format_compute(percent)} with {quantity.format_bytes(memory_bytes)}"
    text = f"free {size} of {counted(total.total_percent // 100, 'GPU')}"
    if total.stranded_gpus >= 0.005:
        text += f", {total.fragmentation:.0%} of it stranded"
    short = [
        gpu
        for gpu in all_gpus
        if gpu.shared
        and any(gpu.free)
        and (gpu.free[0] < gpu.typical.compute * 100 or gpu.free[1] < gpu.typical.memory * gpu.gpu.memory_bytes)
    ]
    if short:
        size = quantity.format_compute(round(short[0].typical.compute * 100))
        have = "has" if len(short) == 1 else "have"
        text += f": {counted(len(short), 'GPU')} {have} less than the typical {size} left"
    if total.largest:
        percent, memory_bytes = total.largest.free
        size = f"{quantity.format_compute(percent)} with {quantity.format_bytes(memory_bytes)}"
        text += f"; largest single share {size} on {total.largest.name}"
    return text


def ledger_problems(nodes: Iterable[GpuNode], gpus: Iterable[GpuSummary]) -> list[str]:
    # The ledger's rules are checked only for suspicious nodes: there may be thousands.
    suspects = {gpu.node for gpu in gpus if gpu.gone or gpu.over_committed}
    return [sentence for node in nodes for sentence in _problems_of_node(node, suspected=node.name in suspects)]


def ledger_problems_of(node: GpuNode, gpu: GpuSummary) -> list[str]:
    others = ledger.use(node).keys() - {gpu.gpu.uuid}
    return [sentence for sentence in _problems_of_node(node) if not any(uuid in sentence for uuid in others)]


def _problems_of_node(node: GpuNode, *, suspected: bool = True) -> Sequence[str]:
    return (*node.problems, *(ledger.violations(node) if suspected else ()))
