"""Usage: what shares really use now, as the agents of their nodes measure it. Values, and the reader of their metrics.

The format: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping

MEMORY = "gpushare_share_used_memory_bytes"
COMPUTE = "gpushare_share_used_compute_ratio"  # 1 is the GPU; an agent that does not measure it has no such line

_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{(.*)\} (\S+)(?: \d+)?")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)",?')
_ESCAPED = re.compile(r"\\(.)")


@dataclasses.dataclass(frozen=True, slots=True)
class Used:
    """Of one or several GPUs. `compute_percent` of one GPU, None where it is not measured."""

    memory_bytes: int = 0
    compute_percent: float | None = None

    def plus(self, other: Used) -> Used:
        """Both together."""
        known = [part for part in (self.compute_percent, other.compute_percent) if part is not None]
        return Used(self.memory_bytes + other.memory_bytes, sum(known) if known else None)


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """`shares`: by namespace, pod and GPU; `gpus`: their sums. `nodes`: those whose agents answered."""

    nodes: frozenset[str] = frozenset()
    shares: Mapping[tuple[str, str, str], Used] = dataclasses.field(default_factory=dict)
    gpus: Mapping[str, Used] = dataclasses.field(default_factory=dict)

    def of_gpu(self, node: str, uuid: str) -> Used | None:
        """Of all shares on a GPU; None if it is not known."""
        return self.gpus.get(uuid, Used()) if node in self.nodes else None

    def of_pod(self, node: str, namespace: str, name: str, uuids: Iterable[str]) -> Used | None:
        """Of one pod on these GPUs; None if it is not known."""
        if node not in self.nodes:
            return None
        return _sum(self.shares.get((namespace, name, uuid), Used()) for uuid in uuids)


NOTHING_KNOWN = Usage()


def of(answers: Mapping[str, str]) -> Usage:
    """The usage in the metrics of some agents, by node."""
    shares: dict[tuple[str, str, str], Used] = {}
    for text in answers.values():
        for name, labels, value in _samples(text):
            key = (labels.get("namespace", ""), labels.get("pod", ""), labels.get("gpu", ""))
            used = Used(int(value)) if name == MEMORY else Used(0, value * 100)
            shares[key] = shares[key].plus(used) if key in shares else used
    gpus: dict[str, Used] = {}
    for (_, _, gpu), used in shares.items():
        gpus[gpu] = gpus[gpu].plus(used) if gpu in gpus else used
    return Usage(frozenset(answers), shares, gpus)


def _samples(text: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None or match[1] not in {MEMORY, COMPUTE}:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        yield match[1], {key: _unescaped(quoted) for key, quoted in _LABEL.findall(match[2])}, value


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], text)


def _sum(parts: Iterable[Used]) -> Used:
    total = Used()
    for part in parts:
        total = total.plus(part)
    return total
