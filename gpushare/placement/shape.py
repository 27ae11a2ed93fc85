"""Shape: what placement needs to know of a pod. Pods of one shape cost the same everywhere: costs are kept by shape."""

from __future__ import annotations

import dataclasses

from gpushare.mix import NO_HOST, Host
from gpushare.request import Constraints, Demand, Request
from gpushare.share import Memory


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A demand without its containers."""

    gpus: int
    request_percent: int
    memory: Memory


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Parts in the order in which they are placed, and everything else that a cost depends on."""

    parts: tuple[Part, ...]
    constraints: Constraints
    policy: str
    host: Host = NO_HOST

    @classmethod
    def of(cls, request: Request, *, policy: str, host: Host = NO_HOST) -> Shape:
        """The shape of a request; `policy` is taken where it names none."""
        parts = tuple(Part(one.gpus, one.share.request_percent, one.share.memory) for one in in_order(request))
        return cls(parts, request.constraints, request.policy or policy, host)


def in_order(request: Request) -> list[Demand]:
    """The demands in the order in which they are placed: the largest part of a GPU first."""
    return sorted(request.demands, key=lambda one: -one.share.request_percent)
