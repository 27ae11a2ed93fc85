"""Mix: what people ask of this cluster, learned from the pods that are there at one moment.

Placement prices free capacity by it, and `top` calls stranded what it cannot use.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

from gpushare.request import NO_CONSTRAINTS, Constraints, Demand, Request
from gpushare.share import Memory
from gpushare.typical import DEFAULT_MIX, Typical

ENOUGH_PODS = 50  # of fewer the default mix says more
MAX_CLASSES = 512  # the rarest are forgotten beyond
UNSEEN = 0.05  # of all GPUs that are free: what is expected to be asked for yet, one by one, unlike what has been seen
UNSEEN_SETS = 0.02  # the same, all GPUs of a node at once; of a mix of many pods less
MANY_PODS = 300  # of more, the fewer sets are expected


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """What a pod asks of its node beside GPUs; zeros where that is unknown."""

    cpu_milli: int = 0
    memory_bytes: int = 0


NO_HOST = Host()


@dataclasses.dataclass(frozen=True, slots=True)
class RequestClass:
    """A class of request: so many GPUs, each with such a share, with so much of the host; constraints of the model."""

    gpus: int
    request_percent: int
    memory: Memory
    host: Host = NO_HOST
    constraints: Constraints = NO_CONSTRAINTS

    def memory_part(self, gpu_bytes: int) -> float:
        """Memory asked of a GPU with `card_bytes`, as a part of it; more than 1 where it does not fit."""
        return self.memory.on(gpu_bytes) / gpu_bytes if gpu_bytes else 0.0

    def size_on(self, gpu_bytes: int) -> float:
        """GPUs it takes: of each the larger of its two parts, and never nothing."""
        return self.gpus * max(self.request_percent / 100, self.memory_part(gpu_bytes), 0.01)


_DEFAULT: Mapping[RequestClass, float] = {
    RequestClass(1, round(typical.compute * 100), Memory(percent=round(typical.memory * 100))): typical.weight
    for typical in DEFAULT_MIX
}


@dataclasses.dataclass(frozen=True, slots=True)
class Mix:
    """Weights of the classes, and of how many pods they are."""

    weights: Mapping[RequestClass, float] = dataclasses.field(default_factory=dict)
    pods: int = 0

    @classmethod
    def from_counts(cls, counts: Mapping[RequestClass, int], *, pods: int) -> Mix:
        """The mix of so many pods; of very many classes the commonest."""
        commonest = sorted(counts.items(), key=lambda item: (-item[1], repr(item[0])))[:MAX_CLASSES]
        return cls({asked: float(count) for asked, count in commonest}, pods=pods)

    @property
    def classes(self) -> Mapping[RequestClass, float]:
        """Class → weight; the default mix until there are enough pods."""
        return self.weights if self.pods >= ENOUGH_PODS and self.weights else _DEFAULT

    def expecting(self, *, gpus: float, largest: int) -> Mix:
        """The same, and a little that may be asked for yet of so many free GPUs; the more pods, the less it counts.

        Without it the first pods of a cluster, alike and asking for much CPU, would be spread over all nodes, for
        others like them; then no node is left that is whole. largest: GPUs of the largest node.
        """
        if self.pods < ENOUGH_PODS or not self.weights:
            return self
        weights = dict(self.weights)
        sets = UNSEEN_SETS * min(1.0, MANY_PODS / self.pods)
        expected = {1: UNSEEN, largest: sets} if largest > 1 else {1: UNSEEN}
        for size, part in expected.items():
            whole = RequestClass(size, 100, Memory(percent=100))
            weights[whole] = weights.get(whole, 0.0) + part * gpus / size
        return dataclasses.replace(self, weights=weights)

    @property
    def ignorance(self) -> float:
        """1 while nothing is known of what is asked for, and less the more pods it is of."""
        return (ENOUGH_PODS / max(self.pods, ENOUGH_PODS)) ** 2

    def typical(self, gpu_bytes: int) -> tuple[Typical, ...]:
        """The mix as parts of one GPU with `card_bytes`, for `fragmentation.measure`; weights add up to 1."""
        sizes: dict[tuple[float, float], float] = {}
        for asked, weight in self.classes.items():
            memory = math.ceil(100 * min(1.0, asked.memory_part(gpu_bytes)) - 1e-9) / 100
            size = (asked.request_percent / 100, memory)
            sizes[size] = sizes.get(size, 0.0) + weight * asked.gpus
        total = sum(sizes.values())
        return tuple(Typical(*size, weight / total) for size, weight in sorted(sizes.items()))


def classes_of(request: Request, host: Host = NO_HOST) -> Iterator[RequestClass]:
    """The class of each of the request's demands; the host's part is split evenly between them."""
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
