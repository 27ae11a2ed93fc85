"""Usage: what shares use now, as the agents of their nodes measure it; values and the parser of their metrics.

The format: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Container, Iterable, Iterator, Mapping

MEMORY = "gpushare_share_used_memory_bytes"
COMPUTE = "gpushare_share_used_compute_ratio"  # 1 is the whole GPU; absent if the agent does not measure it

_TOO_MUCH = 2.0**63  # bytes, ratios, seconds: a larger value is invalid
# Compiled on first use.
_LINE = r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{(.*)\} (\S+)(?: \d+)?"
_LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)",?'
_ESCAPED = r"\\(.)"


@dataclasses.dataclass(frozen=True, slots=True)
class Used:
    """What is used of one or several GPUs. `compute_percent`: 100 is one GPU; None: not measured."""

    memory_bytes: int = 0
    compute_percent: float | None = None

    def plus(self, other: Used) -> Used:
        """Both measurements added."""
        known = [part for part in (self.compute_percent, other.compute_percent) if part is not None]
        return Used(self.memory_bytes + other.memory_bytes, sum(known) if known else None)


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """`shares`: by namespace, pod and GPU; `gpus`: their sums. `nodes`: those whose agents answered."""

    nodes: frozenset[str] = frozenset()
    shares: Mapping[tuple[str, str, str], Used] = dataclasses.field(default_factory=dict)
    gpus: Mapping[str, Used] = dataclasses.field(default_factory=dict)

    def of_gpu(self, node: str, uuid: str) -> Used | None:
        """What all shares on a GPU use; None if unknown."""
        return self.gpus.get(uuid, Used()) if node in self.nodes else None

    def of_pod(self, node: str, namespace: str, name: str, uuids: Iterable[str]) -> Used | None:
        """What one pod uses on these GPUs; None if unknown."""
        if node not in self.nodes:
            return None
        return _sum(self.shares.get((namespace, name, uuid), Used()) for uuid in uuids)


def of(answers: Mapping[str, str]) -> Usage:
    """The usage in the metrics of some agents, by node."""
    shares: dict[tuple[str, str, str], Used] = {}
    for text in answers.values():
        for name, labels, value in samples(text, (MEMORY, COMPUTE)):
            key = (labels.get("namespace", ""), labels.get("pod", ""), labels.get("gpu", ""))
            used = Used(int(value)) if name == MEMORY else Used(0, value * 100)
            shares[key] = shares[key].plus(used) if key in shares else used
    gpus: dict[str, Used] = {}
    for (_, _, gpu), used in shares.items():
        gpus[gpu] = gpus[gpu].plus(used) if gpu in gpus else used
    return Usage(frozenset(answers), shares, gpus)


def samples(text: str, names: Container[str]) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Name, labels and value of every sample of these metrics; skips other lines."""
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
        yield match[1], {key: _unescaped(quoted) for key, quoted in re.findall(_LABEL, match[2])}, value


def _unescaped(text: str) -> str:
    return re.sub(_ESCAPED, lambda match: "\n" if match[1] == "n" else match[1], text)


def _sum(parts: Iterable[Used]) -> Used:
    total = Used()
    for part in parts:
        total = total.plus(part)
    return total
