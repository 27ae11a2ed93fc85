"""Usage: the current use by shares, as the agents measure it; values and the parser of their metrics.

The format: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
from collections.abc import Container, Iterable, Iterator, Mapping

MEMORY = "gpushare_share_used_memory_bytes"
COMPUTE = "gpushare_share_used_compute_ratio"  # 1 is the whole GPU; absent if nothing measures it
DEVICES = "gpushare_container_devices"  # of GPUs that the kubelet hands out: MIG, MPS, time-slicing, exclusive
_OF_DEVICES = ("namespace", "pod", "container", "resource", "gpu")

_TOO_MUCH = 2.0**63  # bytes, ratios, seconds: a larger value is invalid
_LINE = r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{(.*)\} (\S+)(?: \d+)?"  # compiled on first use, as those below
_LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)",?'


@dataclasses.dataclass(frozen=True, slots=True)
class Used:
    """The use of one or several GPUs."""

    memory_bytes: int = 0
    compute_percent: float = 0.0  # 100 is one GPU
    bound: bool = False  # a part was not measured: `compute_percent` is a lower bound

    def plus(self, other: Used) -> Used:
        compute_percent = self.compute_percent + other.compute_percent
        return Used(self.memory_bytes + other.memory_bytes, compute_percent, self.bound or other.bound)


@dataclasses.dataclass(frozen=True, slots=True)
class GivenDevices:
    """`count` devices of a resource that the kubelet gave to a container, all on one GPU."""

    namespace: str
    pod: str
    container: str
    resource: str
    count: int


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """The usage that the agents measure. A share without figures has no process."""

    nodes: frozenset[str] = frozenset()  # those whose agents answered
    # by namespace, pod and GPU; their sums by GPU; what the kubelet gave to containers, by GPU
    shares: Mapping[tuple[str, str, str], Used] = dataclasses.field(default_factory=dict)
    gpus: Mapping[str, Used] = dataclasses.field(default_factory=dict)
    devices: Mapping[str, tuple[GivenDevices, ...]] = dataclasses.field(default_factory=dict)

    def devices_of(self, node: str, uuid: str) -> tuple[GivenDevices, ...] | None:
        return self.devices.get(uuid, ()) if node in self.nodes else None

    def of_gpu(self, node: str, uuid: str) -> Used | None:
        return self.gpus.get(uuid, Used()) if node in self.nodes else None

    def of_pod(self, node: str, namespace: str, name: str, uuids: Iterable[str]) -> Used | None:
        if node not in self.nodes:
            return None
        return total(self.shares.get((namespace, name, uuid), Used()) for uuid in uuids)


def parse(answers: Mapping[str, str]) -> Usage:
    memory: dict[tuple[str, ...], int] = {}
    compute: dict[tuple[str, ...], float] = {}
    devices = collections.defaultdict[str, list[GivenDevices]](list)
    for text in answers.values():
        for name, labels, value in samples(text, (MEMORY, COMPUTE, DEVICES)):
            if name == DEVICES:
                namespace, pod, container, resource, gpu = (labels.get(key, "") for key in _OF_DEVICES)
                devices[gpu].append(GivenDevices(namespace, pod, container, resource, int(value)))
                continue
            share = tuple(labels.get(key, "") for key in ("gpu", "namespace", "pod", "containers"))
            if name == MEMORY:
                memory[share] = memory.get(share, 0) + int(value)
            else:
                compute[share] = compute.get(share, 0.0) + value * 100
    # Shares of a GPU are measured at different times, so their parts of its time may add up to more than 1.
    whole = collections.defaultdict[str, float](float)
    for (gpu, *_), percent in compute.items():
        whole[gpu] += percent
    shares: dict[tuple[str, str, str], Used] = {}
    gpus: dict[str, Used] = {}
    for share in dict.fromkeys((*memory, *compute)):
        gpu, namespace, pod, _ = share
        used = Used(memory.get(share, 0), compute.get(share, 0.0) * 100 / max(100, whole[gpu]), share not in compute)
        shares[namespace, pod, gpu] = shares.get((namespace, pod, gpu), Used()).plus(used)
        gpus[gpu] = gpus.get(gpu, Used()).plus(used)
    given = {gpu: tuple(sorted(found, key=dataclasses.astuple)) for gpu, found in devices.items()}
    return Usage(frozenset(answers), shares, gpus, given)


def total(parts: Iterable[Used]) -> Used:
    return functools.reduce(Used.plus, parts, Used())


def samples(text: str, names: Container[str]) -> Iterator[tuple[str, Mapping[str, str], float]]:
    for line in text.splitlines():
        match = re.fullmatch(_LINE, line)
        if match is None or match[1] not in names:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if not 0 <= value < _TOO_MUCH:  # nor NaN
            continue
        labels = {
            key: re.sub(r"\\(.)", lambda escaped: "\n" if escaped[1] == "n" else escaped[1], quoted)
            for key, quoted in re.findall(_LABEL, match[2])
        }
        yield match[1], labels, value
