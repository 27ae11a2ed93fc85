"""Worlds: clusters and demands unlike the published ones, each chosen because a policy may do badly there.

They are drawn from the nodes and pods of openb by a seed; `random` ones are made up and need no lists. By default a
world is an eighth of the cluster (every eighth node). Its pods arrive in the given order until they have requested
`trace.MAX_LOAD` of its GPUs.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from openb import trace
from openb.trace import Node, Pod

PART = 8  # every eighth node
RANDOM = tuple(f"random-{number}" for number in range(32))
WHOLE_GPU = 100  # percent
Demand = Callable[[Sequence[Node], Sequence[Pod], random.Random], Iterator[Pod]]


@dataclasses.dataclass(frozen=True)
class World:
    """`about`: the difference from the published lists. demand: endless pods. nodes: chosen from every `part`-th of
    openb.
    """

    about: str
    demand: Demand
    nodes: Callable[[Sequence[Node]], Sequence[Node]] = lambda nodes: nodes
    pods: str = "default"  # the pod list that it draws from
    part: int = PART


def load(directory: Path | None, name: str, seed: int) -> tuple[list[Node], list[Pod]]:
    """Return the nodes of a world, and its pods in order of arrival. directory: of the lists, for WORLDS."""
    world, draw = WORLDS[name] if name in WORLDS else _random(int(name.removeprefix("random-"))), random.Random(seed)
    nodes = list(world.nodes(trace.nodes(directory)[:: world.part] if directory else ()))
    total, asked, pods = 100 * sum(node.gpus for node in nodes), 0.0, []
    for pod in world.demand(nodes, trace.pods(directory, world.pods) if directory else (), draw):
        pods.append(pod)
        asked += pod.size
        if asked >= trace.MAX_LOAD * total:
            return nodes, pods
    raise AssertionError(f"the demand of {name} ended")


def _random(number: int) -> World:
    """Return a small cluster of one to four models, and a demand of two to twelve classes, drawn by the number."""
    draw = random.Random(9000 + number)
    models = draw.sample(["A", "B", "C", "D", "E"], draw.randint(1, 4))
    nodes: list[Node] = []
    for model in models:
        gpus, cpus, gib = draw.choice((1, 2, 4, 8)), draw.choice((8, 12, 16, 32, 64)), draw.choice((32, 48, 64, 128))
        nodes += [
            Node(f"{model}-{node}", 1000 * cpus * gpus, 1024 * gib * gpus, gpus, model)
            for node in range(draw.randint(4, 40))
        ]
    largest = max(node.gpus for node in nodes)
    pods: list[Pod] = []
    for _ in range(draw.randint(2, 12)):
        gpus = draw.choice((1, 1, 1, 1, 2, 4, 8))
        gpus = gpus if gpus <= largest else 1
        percent = WHOLE_GPU if gpus > 1 else draw.choice((5, 10, 20, 25, 30, 33, 50, 60, 70, WHOLE_GPU))
        cpu, memory = 1000 * gpus * draw.choice((1, 2, 4, 8, 12)), 1024 * gpus * draw.choice((4, 8, 16, 32, 48))
        is_named = draw.random() < 0.3 and nodes[0].gpus >= gpus
        named = (draw.choice(models),) if is_named else ()
        pods += [Pod(cpu, memory, gpus, percent, named)] * draw.choice((1, 2, 4, 8))
    return World("", lambda _nodes, _pods, drawn: _drawn(pods, drawn), lambda _: nodes)


def _drawn(pods: Sequence[Pod], draw: random.Random) -> Iterator[Pod]:
    while True:
        yield draw.choice(pods)


def _default(_: Sequence[Node], pods: Sequence[Pod], draw: random.Random) -> Iterator[Pod]:
    return _drawn(pods, draw)


def _naming(_: Sequence[Node], pods: Sequence[Pod], draw: random.Random) -> Iterator[Pod]:
    """Let a third of the pods name models, like those of `gpuspec20`."""
    named = [pod for pod in pods if pod.models]
    others = [pod for pod in pods if not pod.models]
    while True:
        yield draw.choice(named if draw.random() < 1 / 3 else others)


def _naming_evenly(nodes: Sequence[Node], pods: Sequence[Pod], draw: random.Random) -> Iterator[Pod]:
    """Let a third of the GPU pods name a model, in proportion to its GPUs on nodes with enough of them."""
    for pod in _drawn(pods, draw):
        models = [node.model for node in nodes for _ in range(node.gpus) if node.gpus >= pod.gpus]
        is_named = bool(pod.gpus and models) and draw.random() < 1 / 3
        yield dataclasses.replace(pod, models=(draw.choice(models),) if is_named else ())


def _over_asked(nodes: Sequence[Node], pods: Sequence[Pod], draw: random.Random) -> Iterator[Pod]:
    """Let a third of the pods name a model that about an eighth of the GPUs have."""
    wanted = max({"P100", "V100M16", "V100M32"} & {node.model for node in nodes})
    for pod in _drawn(pods, draw):
        is_named = pod.gpus in range(1, 5) and draw.random() < 1 / 3
        yield dataclasses.replace(pod, models=(wanted,) if is_named else ())


def _one_sided(*sets: int) -> Demand:
    """Request an eighth of all GPUs as small shares with much CPU, then sets of whole GPUs."""

    def demand(nodes: Sequence[Node], _: Sequence[Pod], draw: random.Random) -> Iterator[Pod]:
        total, asked = 100 * sum(node.gpus for node in nodes), 0.0
        while True:
            if asked < total / 8:
                pod = Pod(2000, 8192, 1, draw.choice((10, 30)), ())
            else:
                gpus = draw.choice(sets)
                pod = Pod(8000 * gpus, 32768 * gpus, gpus, WHOLE_GPU, ())
            asked += pod.size
            yield pod

    return demand


def _memory_first(nodes: Sequence[Node], _: Sequence[Pod], draw: random.Random) -> Iterator[Pod]:
    """Request an eighth of all GPUs as small shares with much host memory, then sets of four GPUs."""
    total, asked = 100 * sum(node.gpus for node in nodes), 0.0
    while True:
        small = Pod(1000, 16 * 1024, 1, draw.choice((10, 30)), ())
        pod = small if asked < total / 8 else Pod(32_000, 128 * 1024, 4, WHOLE_GPU, ())
        asked += pod.size
        yield pod


def _thirds(_: Sequence[Node], pods: Sequence[Pod], draw: random.Random) -> Iterator[Pod]:
    """Let half of the GPU pods request 0.33 of a GPU; the others stay as listed."""
    for pod in _drawn([pod for pod in pods if pod.gpus], draw):
        yield dataclasses.replace(pod, gpus=1, percent=33) if draw.random() < 0.5 else pod


def _drift(nodes: Sequence[Node], pods: Sequence[Pod], draw: random.Random) -> Iterator[Pod]:
    """Request half of the cluster's GPUs mostly as shares, the rest mostly as several GPUs."""
    total, asked = 100 * sum(node.gpus for node in nodes), 0.0
    shares = [pod for pod in pods if pod.gpus == 1 and pod.percent < 100]
    several = [pod for pod in pods if pod.gpus > 1]
    while True:
        mostly = shares if asked < 0.5 * total else several
        pod = draw.choice(mostly if draw.random() < 0.5 else pods)
        asked += pod.size
        yield pod


def _several(_: Sequence[Node], pods: Sequence[Pod], draw: random.Random) -> Iterator[Pod]:
    """Request half of the demand as several GPUs of a node."""
    several, others = [pod for pod in pods if pod.gpus > 1], [pod for pod in pods if pod.gpus <= 1]
    weight = sum(pod.size for pod in others) / len(others) / (sum(pod.size for pod in several) / len(several))
    while True:
        yield draw.choice(several if draw.random() < weight / (1 + weight) else others)


def _only_shares(_: Sequence[Node], pods: Sequence[Pod], draw: random.Random) -> Iterator[Pod]:
    return _drawn([pod for pod in pods if pod.gpus == 1 and pod.percent < 100], draw)


def _memory_apart(_: Sequence[Node], pods: Sequence[Pod], draw: random.Random) -> Iterator[Pod]:
    """Give shares a part of memory that is another share's part of compute."""
    shares = [pod for pod in pods if pod.gpus == 1 and pod.percent < WHOLE_GPU]
    for pod in _drawn(pods, draw):
        if pod.gpus == 1 and pod.percent < WHOLE_GPU:
            yield dataclasses.replace(pod, gpu_memory_percent=draw.choice(shares).percent)
        else:
            yield pod


def _memory_opposed(_: Sequence[Node], pods: Sequence[Pod], draw: random.Random) -> Iterator[Pod]:
    """Let half of the shares request much memory and little compute (inference), and half the reverse (training)."""
    for pod in _drawn(pods, draw):
        if pod.gpus == 1 and pod.percent < WHOLE_GPU:
            little, much = draw.choice((5, 10, 20, 25)), draw.choice((40, 50, 60, 75))
            compute, memory = (little, much) if draw.random() < 0.5 else (much, little)
            yield dataclasses.replace(pod, percent=compute, gpu_memory_percent=memory)
        else:
            yield pod


def _linked_nodes(_: Sequence[Node]) -> Sequence[Node]:
    return [Node(f"linked-{number}", 128_000, 1024 * 1024, 8, "H100", linked=4) for number in range(20)]


def _linked_sets(_: Sequence[Node], _pods: Sequence[Pod], draw: random.Random) -> Iterator[Pod]:
    """Request shares and single GPUs, and half of the demand as sets of 2, 4 and 8."""
    sizes = ((1, 20), (1, 50), (1, WHOLE_GPU), (2, WHOLE_GPU), (4, WHOLE_GPU), (8, WHOLE_GPU))
    while True:
        gpus, percent = draw.choices(sizes, (8, 8, 8, 3, 2, 0.25))[0]
        yield Pod(8000 * gpus, 32768 * gpus, gpus, percent, ())


def _tiny(_: Sequence[Node]) -> Sequence[Node]:
    return [Node(f"tiny-{number}", 48_000, 256 * 1024, 4, "A10") for number in range(6)]


def _mixed_sizes(_: Sequence[Node], _pods: Sequence[Pod], draw: random.Random) -> Iterator[Pod]:
    while True:
        gpus, percent = draw.choices(((1, 20), (1, 30), (1, 70), (1, 100), (4, 100)), (4, 4, 4, 2, 1))[0]
        yield Pod(4000 * gpus, 16384, gpus, percent, ())


def _half_cpu(nodes: Sequence[Node]) -> Sequence[Node]:
    return [dataclasses.replace(node, cpu_milli=node.cpu_milli // 2) for node in nodes]


WORLDS: Mapping[str, World] = {
    "an-eighth": World("openb's own mix", _default),
    "third-naming": World("a third of the pods name a model", _naming, pods="gpuspec20"),
    "naming-evenly": World("a third name a model, the rare ones as rarely as there are GPUs", _naming_evenly),
    "over-asked": World("a third name one rare model", _over_asked),
    "third-naming-full": World("the same on all nodes", _naming, pods="gpuspec20", part=1),
    "one-sided": World("small shares that ask for much CPU, then 1, 4 and 8 whole GPUs", _one_sided(1, 4, 8)),
    "then-eights": World("small shares that ask for much CPU, then 8 whole GPUs", _one_sided(8)),
    "then-fours": World("small shares that ask for much CPU, then 4 whole GPUs", _one_sided(4)),
    "one-sided-full": World("the world one-sided on all nodes", _one_sided(1, 4, 8), part=1),
    "then-fours-full": World("the world then-fours on all nodes", _one_sided(4), part=1),
    "memory-first": World("small shares that ask for much memory, then 4 whole GPUs", _memory_first),
    "drift": World("shares, then several GPUs", _drift),
    "half-several": World("half of the demand is for several GPUs", _several),
    "only-shares": World("nothing but shares", _only_shares),
    "thirds": World("half of the pods ask for 0.33", _thirds),
    "memory-apart": World("shares whose memory is independent of their compute", _memory_apart),
    "memory-opposed": World("shares with much memory and little compute, and the reverse", _memory_opposed),
    "linked": World(
        "20 nodes of 8 GPUs, 4 of them linked; half of the demand for several", _linked_sets, _linked_nodes
    ),
    "linked-several": World("the same nodes, and the demand of half-several", _several, _linked_nodes),
    "tight-cpu": World("half of the CPU", _default, _half_cpu),
    "tiny": World("6 nodes of 4 GPUs, mixed sizes", _mixed_sizes, _tiny),
}
