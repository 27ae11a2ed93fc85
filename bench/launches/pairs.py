"""The pairs of tenants that `bench/isolation.py` compares, and what `auto` chooses for them."""

from __future__ import annotations

import dataclasses
from typing import Final

from launches.node import Tenant
from programs import decoding

from gpushare import isolation, request
from tests import builders

REQUESTS: Final = 8  # of both models together
PERIODS_MS: Final = {"requests": 20, "bursts": 500}  # modes with a given amount of work, whose pieces have a latency


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """Two tenants. one: a tenant that alone does the work of both; without it, each is compared with itself alone."""

    name: str
    title: str
    tenants: tuple[Tenant, Tenant]
    one: Tenant | None = None

    @property
    def partitions(self) -> int:
        """How many equal SM partitions their requests are for; 0 if they differ."""
        first, second = (100 // tenant.request for tenant in self.tenants)
        return first if first == second > 1 else 0

    @property
    def never_pauses(self) -> bool:
        """Whether both always want the GPU, so that their requests say which part each should get."""
        return not any(tenant.mode in PERIODS_MS for tenant in self.tenants)


def _model(requests: float, percent: int) -> Tenant:
    return Tenant(percent, 100, "steps", round(decoding.step_ns(requests) / 1000), kernel=KERNEL)


def _steady(percent: int, limit: int = 100) -> Tenant:
    return Tenant(percent, limit, "async", 1000)


KERNEL: Final = f"decode_{decoding.KERNEL_PERCENT}pct_ns"
SERVICE: Final = Tenant(20, 100, "requests", 2000)
PAIRS: Final = (
    Pair("decode", "decoding 50/50", (_model(REQUESTS / 2, 50),) * 2, _model(REQUESTS, 100)),
    Pair(
        "decode_limits",
        "decoding 50/50, with these limits",
        (dataclasses.replace(_model(REQUESTS / 2, 50), limit=50),) * 2,
        _model(REQUESTS, 100),
    ),
    Pair(
        "decode_50_35",
        "decoding 50/35",
        (_model(REQUESTS / 2, 50), _model(REQUESTS / 2, 35)),
        _model(REQUESTS, 100),
    ),
    Pair("latency", "training 80, service 20 with latency", (_steady(80), dataclasses.replace(SERVICE, latency=True))),
    Pair("service", "training 80, service 20", (_steady(80), SERVICE)),
    Pair("bursts", "steady 50, bursts 50", (_steady(50), Tenant(50, 100, "bursts", 1000))),
    Pair("30_70", "steady 30/70", (_steady(30), _steady(70))),
    Pair("10_90", "steady 10/90", (_steady(10), _steady(90))),
    Pair("30_70_limits", "steady 30/70, with these limits", (_steady(30, 30), _steady(70, 70))),
    Pair("10_90_limits", "steady 10/90, with these limits", (_steady(10, 10), _steady(90, 90))),
)


def auto(pair: Pair) -> str:
    """Return the first isolation that gpushare tries for the first pod and also tries for the second one."""
    first, second = (isolation.kinds(_asked(tenant), request.AUTO) for tenant in pair.tenants)
    return str(next(kind for kind in first if kind in second))


def _asked(tenant: Tenant) -> request.Request:
    pod = builders.pod(
        request=str(tenant.request / 100),
        limit=str(tenant.limit / 100),
        memory="1Gi",
        latency="true" if tenant.latency else "false",
    )
    return request.parse(pod)
