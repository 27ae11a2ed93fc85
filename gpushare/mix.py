"""Mix: the requests that are typical of this cluster, learned from its current pods.

Placement prices free capacity by the mix; `top` calls capacity stranded if the mix cannot use it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

from gpushare.allocation import Memory
from gpushare.policies import DEFAULT_MIX, Typical
from gpushare.request import NO_CONSTRAINTS, Constraints, Demand, Request

ENOUGH_PODS = 50  # with fewer pods the default mix is a better guess of what is typical
FEW_PODS = 10  # with fewer pods nothing is known
PRIOR = 5  # pods that the default mix counts as at first; none from ENOUGH_PODS on
MAX_CLASSES = 512  # the rarest beyond this are dropped
UNSEEN = 0.05  # part of all GPUs expected to be requested one by one, while no pod requests whole GPUs
UNSEEN_SETS = 0.02  # the same for all GPUs of a node at once, while no pod requests several
SMALL_GPUS = 16  # of a cluster that its first pods tell enough about
KNOWN = 0.1  # part of all GPUs whose demand must be seen to tell which kinds and sets of GPUs will be scarce
RARE = 0.1  # ignorance while none of that has been seen
SEEN = 0.2  # part of the demand from which whole GPUs are known, so that no more of them are expected
SEEN_SETS = 0.05  # the same for several GPUs


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """The CPU and memory that a pod requests; zeros if unknown."""

    cpu_milli: int = 0
    memory_bytes: int = 0


NO_HOST = Host()


@dataclasses.dataclass(frozen=True, slots=True)
class RequestClass:
    """A class of request: the number of GPUs, the share on each, CPU and memory, and constraints on the model."""

    gpus: int
    request_percent: int
    memory: Memory
    host: Host = NO_HOST
    constraints: Constraints = NO_CONSTRAINTS

    def memory_part(self, gpu_bytes: int) -> float:
        """Return the requested memory as a part of a GPU with `gpu_bytes`; above 1 if it does not fit."""
        return self.memory.on(gpu_bytes) / gpu_bytes if gpu_bytes else 0.0

    def size_on(self, gpu_bytes: int) -> float:
        """Return the GPUs that a pod takes: per GPU the larger of compute and memory, and at least 0.01."""
        return self.gpus * max(self.request_percent / 100, self.memory_part(gpu_bytes), 0.01)


_DEFAULT: Mapping[RequestClass, float] = {
    RequestClass(1, round(typical.compute * 100), Memory(percent=round(typical.memory * 100))): typical.weight
    for typical in DEFAULT_MIX
}


@dataclasses.dataclass(frozen=True, slots=True)
class Mix:
    """The weight of each class, and the cluster that they were learned in.

    pods: with a share. gpus: of all nodes. largest: GPUs of the largest node. others: requested on nodes with GPUs by
    pods without a share, which another scheduler places there.
    """

    weights: Mapping[RequestClass, float] = dataclasses.field(default_factory=dict)
    pods: int = 0
    gpus: int = 0
    largest: int = 0
    others: Host = NO_HOST

    @classmethod
    def from_counts(cls, counts: Mapping[RequestClass, int], *, pods: int) -> Mix:
        """Build the mix from the pods per class, keeping the most common classes."""
        return cls({asked: float(count) for asked, count in counts.items()}, pods=pods).cut(MAX_CLASSES)

    def cut(self, most: int) -> Mix:
        """Return the mix with only its `most` most common classes; `others` shrinks by the same factor."""
        commonest = sorted(self.weights.items(), key=lambda item: (-item[1], repr(item[0])))[:most]
        kept = dataclasses.replace(self, weights=dict(commonest))
        before, after, others = self.requested, kept.requested, self.others
        cpu = others.cpu_milli * after.cpu_milli // before.cpu_milli if before.cpu_milli else others.cpu_milli
        memory = others.memory_bytes
        if before.memory_bytes:
            memory = memory * after.memory_bytes // before.memory_bytes
        return dataclasses.replace(kept, others=Host(cpu, memory))

    @property
    def classes(self) -> Mapping[RequestClass, float]:
        """The weight of each class; the default mix until there are enough pods."""
        return self.weights if self.pods >= ENOUGH_PODS and self.weights else _DEFAULT

    def expecting(self) -> Mapping[RequestClass, float]:
        """Return the classes with the default mix added while pods are few, and whole GPUs while few pods request them.

        Without whole GPUs, the first pods, if all alike with much CPU, would be spread over all nodes, because only
        more of the same would be expected. Expected ones need no CPU, so they make it look less scarce than it is.
        Before the first pod, they are as many as in a cluster of SMALL_GPUS: few in the default mix. An expected single
        GPU has the isolation of most single ones, because some GPUs offer no other; several always get leases.
        """
        every = whole = several = 0.0
        weights, single = dict(self.weights), {NO_CONSTRAINTS.isolation: 0.0}
        for asked, weight in self.weights.items():
            demand = weight * asked.gpus * max(asked.request_percent, 1)
            every += demand
            whole += demand if asked.request_percent == 100 else 0.0
            several += demand if asked.gpus > 1 else 0.0
            if asked.gpus == 1:
                single[asked.constraints.isolation] = single.get(asked.constraints.isolation, 0.0) + demand
        every = every or 1.0
        unseen = {self.largest: UNSEEN_SETS * (1 - several / SEEN_SETS / every), 1: UNSEEN * (1 - whole / SEEN / every)}
        for size, part in unseen.items():
            if part > 0 and self.gpus:
                kind = NO_CONSTRAINTS.isolation if size > 1 else max(single, key=lambda each: (single[each], each))
                expected = RequestClass(size, 100, Memory(percent=100), constraints=Constraints(isolation=kind))
                gpus = self.gpus if self.weights else SMALL_GPUS
                weights[expected] = weights.get(expected, 0.0) + part * gpus / size
        prior = PRIOR * (1 - self.pods / ENOUGH_PODS if self.weights else 1)
        if prior > 0:
            weights |= {asked: weights.get(asked, 0.0) + prior * weight for asked, weight in _DEFAULT.items()}
        return weights

    @property
    def requested(self) -> Host:
        """The CPU and memory of the pods with a share."""
        hosts = [(weight, asked.host) for asked, weight in self.weights.items()]
        cpu = sum(weight * host.cpu_milli for weight, host in hosts)
        return Host(round(cpu), round(sum(weight * host.memory_bytes for weight, host in hosts)))

    @property
    def host_scale(self) -> tuple[float, float]:
        """CPU and memory of all pods per those of pods with a share, 1 to 2, as more of the others will come too."""
        shared, others = self.requested, self.others
        cpu = others.cpu_milli / max(1, shared.cpu_milli, others.cpu_milli)
        return 1 + cpu, 1 + others.memory_bytes / max(1, shared.memory_bytes, others.memory_bytes)

    @property
    def unknown_gpus(self) -> float:
        """GPUs of the first tenth of the cluster that no pod has requested yet; none in a small cluster."""
        seen = sum(weight * asked.gpus * asked.request_percent / 100 for asked, weight in self.weights.items())
        return max(0.0, KNOWN * self.gpus - max(seen, SMALL_GPUS)) if self.weights else 0.0

    @property
    def ignorance(self) -> float:
        """How little the mix says about future requests: 1 with few pods, falling as they and their demand grow."""
        return max((FEW_PODS / max(self.pods, FEW_PODS)) ** 2, RARE * self.unknown_gpus / (KNOWN * self.gpus or 1.0))

    def typical(self, gpu_bytes: int) -> tuple[Typical, ...]:
        """Return the mix as parts of one GPU with `gpu_bytes`; the weights add up to 1."""
        sizes: dict[tuple[float, float], float] = {}
        for asked, weight in self.classes.items():
            memory = math.ceil(100 * min(1.0, asked.memory_part(gpu_bytes)) - 1e-9) / 100
            size = (asked.request_percent / 100, memory)
            sizes[size] = sizes.get(size, 0.0) + weight * asked.gpus
        total = sum(sizes.values())
        return tuple(Typical(*size, weight / total) for size, weight in sorted(sizes.items()))


def classes_of(request: Request, host: Host = NO_HOST) -> Iterator[RequestClass]:
    """Yield the class of each demand of a request; CPU and memory are split evenly between them."""
    parts = len(request.demands)
    for demand in request.demands:
        yield _class_of(demand, request.constraints, Host(host.cpu_milli // parts, host.memory_bytes // parts))


def _class_of(demand: Demand, constraints: Constraints, host: Host) -> RequestClass:
    return RequestClass(
        gpus=demand.gpus,
        request_percent=demand.share.request_percent,
        memory=demand.share.memory,
        host=host,
        constraints=constraints.of_model,
    )
