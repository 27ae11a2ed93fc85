"""RequestKey: everything that placement depends on in a request. Pods with equal keys cost the same everywhere."""

from __future__ import annotations

import dataclasses

from gpushare.allocation import ALL_STEPS, Memory, Steps
from gpushare.mix import NO_HOST, Host
from gpushare.request import Constraints, Demand, Request


@dataclasses.dataclass(frozen=True, slots=True)
class DemandKey:
    """A demand without its containers."""

    gpus: int
    request_percent: int
    memory: Memory
    steps: Steps = ALL_STEPS
    memory_limit: Memory | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class RequestKey:
    """The parts in placement order, and everything else that a cost depends on."""

    parts: tuple[DemandKey, ...]
    constraints: Constraints
    policy: str
    host: Host = NO_HOST

    @classmethod
    def for_request(cls, request: Request, *, policy: str, host: Host = NO_HOST) -> RequestKey:
        """Return the key of a request; `policy` applies if it names none."""
        parts = tuple(
            DemandKey(
                demand.gpus,
                demand.share.request_percent,
                demand.share.memory,
                demand.steps,
                demand.share.memory_limit,
            )
            for demand in in_order(request)
        )
        return cls(parts, request.constraints, request.policy or policy, host)


def in_order(request: Request) -> list[Demand]:
    """Return the demands in placement order: the largest part of a GPU first."""
    return sorted(request.demands, key=lambda demand: -demand.share.request_percent)
