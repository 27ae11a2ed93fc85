"""Six hours of an invented cluster, reported by the real collectors of webhook and agent, for the pictures of the
dashboards. 16 GPUs, four teams; in the fourth hour research wants more than there is, and a GPU fails.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import random
from collections.abc import Iterator

import prometheus_client

from deviceplugin.arbiter.scheduling.leases import LeaseUsage
from deviceplugin.arbiter.share_ledgers import ShareUse
from deviceplugin.arbiter.tenant import Grant, Tenant
from deviceplugin.audit.node_audit import AuditedProcess, AuditedShare, LimitState, NodeAudit, SeenProcess
from deviceplugin.report import agent_metrics
from deviceplugin.report.share_peaks import Peak
from gpushare import contract, errors, ledger
from gpushare.allocation import Allocation, GivenShare, PodRef
from gpushare.gpunode import Condition, Gpu, GpuNode
from gpushare.mix import Mix
from webhook import metrics as webhook_metrics
from webhook.controllers.leader_reports import ClusterFigures

MINUTES, STEP = 360, 5
GIB = 1 << 30
FAILS_AT, CORDONED_AT, SNEAKS_AT = 215, 250, 320
MODELS = {"gpu-1": ("NVIDIA H100 80GB HBM3", 80), "gpu-2": ("NVIDIA H100 80GB HBM3", 80)}
OTHERS = ("NVIDIA A100-SXM4-40GB", 40)


@dataclasses.dataclass(frozen=True, slots=True)
class Wish:
    """A pod: from when to when, how much, and what it makes of it (parts of its memory and of its compute)."""

    namespace: str
    name: str
    begins: int
    lasts: int
    percent: int
    memory: float
    use: float
    busy: float


def wishes(draw: random.Random) -> list[Wish]:
    """Everything that is asked for."""
    found = [Wish("web", f"answers-{n}", 0, 900, 25, 0.25, 0.9, 0.2 + 0.05 * n) for n in range(6)]
    found += [Wish("notebooks", f"jupyter-{n}", 10 * n, 900, 25, 0.5, 0.08 if n % 3 else 0.0, 0.02) for n in range(6)]
    found += [Wish("vision", f"train-{n}", 25 * n, 110 + draw.randrange(60), 50, 0.5, 0.8, 0.5) for n in range(12)]
    found += [Wish("research", f"sweep-{n}", 150 + 9 * n, 400 if n > 5 else 75, 100, 1.0, 0.95, 0.9) for n in range(16)]
    return sorted(found, key=lambda one: one.begins)


class Night:
    """The cluster, minute by minute."""

    def __init__(self) -> None:
        self._draw = random.Random(7)  # noqa: S311 - the same night every time
        self._wishes = wishes(self._draw)
        self.nodes = {name: _node(name) for name in ("gpu-1", "gpu-2", "gpu-3", "gpu-4")}
        self._placed: dict[str, tuple[Wish, str, str]] = {}  # by pod: where it is
        self._seconds: collections.Counter[str] = collections.Counter()
        self._waited: collections.Counter[str] = collections.Counter()
        self._measures = webhook_metrics.Metrics()
        self._measures.leads(1)
        mix = Mix()
        self._figures = ClusterFigures(leads=lambda: True, nodes=self.nodes.values, mix=lambda: mix)
        self._measures.registry.register(self._figures)
        self._agents = {name: self._agent(name) for name in self.nodes}
        self.minute = 0

    def tell(self, began: int) -> Iterator[str]:
        """All samples in OpenMetrics; `began`: Unix seconds of its beginning."""
        found: dict[str, list[str]] = collections.defaultdict(list)
        for self.minute in range(0, MINUTES + 1, STEP):
            self._step()
            asyncio.run(self._figures.count())
            self._measures.certificate_ends(began + 86400 * 30)
            for job, instance, registry in self._targets():
                own = f'job="{job}",instance="{instance}"'
                _add(found, prometheus_client.generate_latest(registry).decode(), own, began + 60 * self.minute)
                node = f',node="{instance}"' if job == "gpushare-agent" else ""
                found["up"].append(f"up{{{own}{node}}} 1 {began + 60 * self.minute}")
            for minute in range(self.minute, min(self.minute + STEP, MINUTES + 1)):
                for namespace, gpus in self._by_namespace().items():
                    name = "namespace:container_gpu_allocation:sum"
                    found[name].append(f'{name}{{namespace="{namespace}"}} {gpus} {began + 60 * minute}')
        for name, lines in sorted(found.items()):
            yield f"# TYPE {name} unknown\n"
            yield from (
                f"{line}\n" for line in sorted(lines, key=lambda line: line.rpartition(" ")[0].rpartition(" ")[0])
            )
        yield "# EOF\n"

    def _targets(self) -> Iterator[tuple[str, str, prometheus_client.CollectorRegistry]]:
        yield "gpushare-webhook", "gpushare-webhook-7d4b-x2x9q", self._measures.registry
        # The replica that does not lead.
        yield "gpushare-webhook", "gpushare-webhook-7d4b-k8w5m", prometheus_client.CollectorRegistry()
        yield from (("gpushare-agent", name, registry) for name, registry in self._agents.items())

    def _step(self) -> None:
        for name, (wish, node, _) in list(self._placed.items()):
            if wish.begins + wish.lasts <= self.minute:
                self.nodes[node] = ledger.release(self.nodes[node], [name])
                del self._placed[name]
        if self.minute == FAILS_AT:
            self._change("gpu-3", 1, healthy=False, health_reason="XID 79")
        if self.minute == CORDONED_AT:
            self._change("gpu-4", 3, cordoned=True)
        waiting = [wish for wish in self._wishes if wish.begins <= self.minute and wish.name not in self._placed]
        waiting = [one for one in waiting if one.begins + one.lasts > self.minute and not self._place(one)]
        reasons = collections.Counter((one.namespace, "compute" if one.percent > 50 else "memory") for one in waiting)
        longest = max((self.minute - one.begins for one in waiting), default=0)
        self._measures.waiting(reasons, longest_seconds=60.0 * longest)
        for _ in range(20 + self._draw.randrange(20)):
            self._measures.reviewed("placed" if self._draw.random() < 0.8 else "kept", self._draw.uniform(0.008, 0.06))
        for _ in waiting:
            self._measures.reviewed("gated", self._draw.uniform(0.01, 0.09))
        for name, (wish, _, _) in self._placed.items():
            self._seconds[name] += int(60 * STEP * min(1.0, wish.busy * self._draw.uniform(0.8, 1.1)))
            self._waited[name] += int(60 * STEP * 0.3 * wish.busy * self._draw.random())

    def _place(self, wish: Wish) -> bool:
        for node in self.nodes.values():
            for gpu in node.gpus:
                if not gpu.healthy or gpu.uuid in node.cordoned:
                    continue
                share = GivenShare(("main",), (gpu.uuid,), wish.percent, 100, int(gpu.memory_bytes * wish.memory))
                entry = Allocation(wish.name, PodRef(wish.namespace, wish.name, f"u-{wish.name}"), (share,))
                try:
                    self.nodes[node.name] = ledger.reserve(node, entry)
                except errors.LedgerError:
                    continue
                self._placed[wish.name] = wish, node.name, gpu.uuid
                self._measures.placed()
                return True
        return False

    def _change(self, name: str, index: int, **how: object) -> None:
        node = self.nodes[name]
        gpus = tuple(dataclasses.replace(gpu, **how) if gpu.index == index else gpu for gpu in node.gpus)  # type: ignore[arg-type]
        cordoned = frozenset(gpu.uuid for gpu in gpus if gpu.cordoned)
        self.nodes[name] = dataclasses.replace(node, gpus=gpus, cordoned=cordoned)

    def _by_namespace(self) -> dict[str, float]:
        found: dict[str, float] = collections.defaultdict(float)
        for wish, _, _ in self._placed.values():
            found[wish.namespace] += max(wish.percent / 100, wish.memory)
        return found

    def _agent(self, name: str) -> prometheus_client.CollectorRegistry:
        made = prometheus_client.CollectorRegistry()
        made.register(_Now(self, name))
        return made

    def collector(self, name: str) -> agent_metrics.AgentCollector:
        """The agent of a node, as it is now."""
        node = self.nodes[name]
        here = [(wish, self._tenant(wish, uuid)) for wish, where, uuid in self._placed.values() if where == name]
        active = [(wish, tenant) for wish, tenant in here if wish.use]
        sneaky = self.minute >= SNEAKS_AT and name == "gpu-2"
        ready = Condition(contract.CONDITION_READY, "True", "GpusHealthy")
        if any(not gpu.healthy for gpu in node.gpus):
            ready = dataclasses.replace(ready, reason="SomeGpusUnhealthy")
        limits = Condition(contract.CONDITION_LIMITS_IN_FORCE, "True", "Audited")
        if sneaky:
            limits = Condition(contract.CONDITION_LIMITS_IN_FORCE, "False", "ProcessUnlimited")
        told = dataclasses.replace(node, conditions=(ready, Condition("ConfigPending", "False", "Done"), limits))
        snapshot = agent_metrics.MetricsSnapshot(
            gpus=node.gpus,
            node=told,
            uses=[ShareUse(tenant, (self._bytes(wish, tenant),), 1, (400 << 20,)) for wish, tenant in active],
            connections=len(active),
            leases=[
                LeaseUsage(
                    *(tenant, tenant.grants[0].uuid, self._seconds[wish.name], self._seconds[wish.name] * 20),
                    *(wish.busy * self._draw.uniform(0.9, 1.1), self._waited[wish.name], 0.0, 0),
                )
                for wish, tenant in active
            ],
            audit=NodeAudit(
                node.gpus,
                processes=(_sneaky(node.gpus[2].uuid),) if sneaky else (),
                shares=tuple(
                    AuditedShare(
                        wish.namespace, wish.name, ("main",), tenant.grants[0].uuid, wish.percent, 100, GIB, processes=1
                    )
                    for wish, tenant in active
                ),
            ),
            peaks=[
                Peak(
                    f"u-{wish.name}",
                    wish.namespace,
                    wish.name,
                    "main",
                    tenant.grants[0].uuid,
                    int(tenant.grants[0].memory_bytes * min(0.98, wish.use * 1.08)),
                    min(1.0, wish.busy * 1.2),
                    3600.0,
                )
                for wish, tenant in active
            ],
        )
        return agent_metrics.AgentCollector(name, lambda: snapshot)

    def _tenant(self, wish: Wish, uuid: str) -> Tenant:
        (gpu,) = (gpu for node in self.nodes.values() for gpu in node.gpus if gpu.uuid == uuid)
        grant = Grant(uuid, int(gpu.memory_bytes * wish.memory), wish.percent, 100)
        return Tenant(f"u-{wish.name}", wish.namespace, wish.name, ("main",), 0, (grant,))

    def _bytes(self, wish: Wish, tenant: Tenant) -> int:
        grown = min(1.0, (self.minute - wish.begins + STEP) / 30)
        return int(tenant.grants[0].memory_bytes * wish.use * grown * self._draw.uniform(0.95, 1.0))


class _Now:
    """A collector that asks for another at each scrape."""

    def __init__(self, night: Night, name: str) -> None:
        self._night, self._name = night, name

    def collect(self) -> Iterator[prometheus_client.Metric]:
        yield from self._night.collector(self._name).collect()


def _sneaky(uuid: str) -> AuditedProcess:
    return AuditedProcess(
        SeenProcess(uuid, 4711, 1, "python3", 3 * GIB, None, with_library=False), LimitState.UNLIMITED
    )


def _node(name: str) -> GpuNode:
    model, memory_gib = MODELS.get(name, OTHERS)
    return GpuNode(name, tuple(Gpu(f"GPU-{name[-1]}{n}f3c", n, model, memory_gib * GIB) for n in range(4)))


def _add(found: dict[str, list[str]], text: str, own: str, at: int) -> None:
    """The lines of a scrape, with the labels of the target."""
    for line in text.splitlines():
        if line.startswith("#") or "_created" in line:
            continue
        series, _, value = line.rpartition(" ")
        name, _, labels = series.rstrip("}").partition("{")
        found[name].append(f"{name}{{{own}{',' if labels else ''}{labels}}} {value} {at}")
