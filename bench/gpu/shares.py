"""Compute: accuracy of shares and limits, use of idle time, latency next to training, loss by handovers."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping

from bench.gpu.bench import Bench
from bench.gpu.modes import NATIVE, OURS, Mode
from bench.gpu.tenants import BUILT
from bench.launches.node import Tenant, turns_of

WORKLOADS: Mapping[str, tuple[str, int]] = {
    "async": ("async", 1000),
    "sync": ("sync", 1000),
    "tiny": ("async", 20),
    "graph": ("graph", 1000),
}
CAPS = (10, 30, 50, 70)
CAP_OF_OTHERS = 30  # for all workloads but the first
SPLITS = ((30, 70), (10, 90), (50, 50))
PAIRS = (("async", "async"), ("sync", "sync"), ("tiny", "tiny"), ("graph", "graph"), ("async", "sync"))
UNLIMITED_POINTS = 20.0  # beyond this error a limit counts as not kept
TURNS_MS = (5, 10, 20, 30, 50, 100)


async def alone(bench: Bench) -> Mapping[str, float]:
    """Return each workload's native rate, in percent of its nominal time. Measured once per run."""
    if not bench.report.alone:
        for name, load in WORKLOADS.items():
            (done,) = await bench.compete(NATIVE, [Tenant(100, 100, *load)])
            bench.report.alone[name] = done.percent
            bench.report.add(f"alone.{name}", done.percent, "%")
    return bench.report.alone


async def caps(bench: Bench) -> None:
    """Run one tenant alone: one workload with four limits, the others with one."""
    whole = await alone(bench)
    first, *others = WORKLOADS
    cases = [(limit, first) for limit in CAPS] + [(CAP_OF_OTHERS, name) for name in others]
    modes = (OURS, *bench.peers)
    rows: list[list[str]] = []
    errors: dict[str, list[float]] = {mode.name: [] for mode in modes}
    title = "One tenant with a limit, alone, % of native"
    bench.report.table(title, ["limit, workload", *(mode.name for mode in modes)], rows)
    for limit, name in cases:
        row = [f"{limit}, {name}"]
        for mode in modes:
            row.append("failed")
            with bench.row(f"cap.{limit}.{name}.{mode.name}"):
                (done,) = await bench.compete(mode, [Tenant(5, limit, *WORKLOADS[name])])
                got = done.percent * 100 / whole[name]
                errors[mode.name].append(abs(got - limit))
                bench.report.add(f"cap.{limit}.{name}.{mode.name}", got, "%", against="limit", goal=limit)
                row[-1] = f"{got:.2f}"
        rows.append(row)
    if errors[OURS.name]:
        bench.report.add("cap.worst_error", max(errors[OURS.name]), "points", against="goal", goal=1.0)
    for peer in bench.peers:
        if min(errors[peer.name], default=0.0) > UNLIMITED_POINTS:
            bench.report.say(f"\n{peer.name} kept no limit here: check its set-up")


async def splits(bench: Bench) -> None:
    """Run two tenants that never pause, and compare their shares with their requests."""
    whole = await alone(bench)
    rows: list[list[str]] = []
    head = ["requests, workloads", "", "shares %", "sum, % of native"]
    bench.report.table("Two tenants that never pause", head, rows)
    cases = [(split, PAIRS[0]) for split in SPLITS] + [(SPLITS[0], pair) for pair in PAIRS[1:]]
    errors = []
    for (request, other), (first, second) in cases:
        with bench.row(f"split.{request}.{first}.{second}.{OURS.name}"):
            share, total = await _split(bench, OURS, (request, other), (first, second), whole)
            errors.append(abs(share - request))
            text = f"{request}/{other} {first}, {second}"
            rows.append([text, OURS.name, f"{share:.2f}/{100 - share:.2f}", f"{total:.2f}"])
    for mode in (NATIVE, *bench.peers):
        for request, other in SPLITS if mode is not NATIVE else SPLITS[:1]:  # time slicing ignores requests
            with bench.row(f"split.{request}.{mode.name}"):
                share, total = await _split(bench, mode, (request, other), PAIRS[0], whole)
                row = [f"{request}/{other} async, async", mode.name, f"{share:.2f}/{100 - share:.2f}", f"{total:.2f}"]
                rows.append(row)
    if errors:
        bench.report.add("split.worst_error", max(errors), "points", against="goal", goal=1.0)


async def _split(
    bench: Bench, mode: Mode, requests: tuple[int, int], pair: tuple[str, str], whole: Mapping[str, float]
) -> tuple[float, float]:
    first, second = pair
    tenants = [Tenant(requests[0], 100, *WORKLOADS[first]), Tenant(requests[1], 100, *WORKLOADS[second])]
    if not mode.keeps_requests:
        tenants = [dataclasses.replace(tenant, limit=tenant.request) for tenant in tenants]
    done = await bench.compete(mode, tenants)
    parts = [done[0].percent * 100 / whole[first], done[1].percent * 100 / whole[second]]
    share = 100 * parts[0] / sum(parts)
    name = f"split.{requests[0]}.{first}.{second}.{mode.name}"
    bench.report.add(name, share, "%", against="request", goal=requests[0])
    bench.report.add(f"{name}.total", sum(parts), "%", against="native alone", goal=100.0)
    return share, sum(parts)


async def elasticity(bench: Bench) -> None:
    """Measure how much of an idle neighbour's time is used, and how soon it is served when it returns."""
    whole = await alone(bench)
    async with bench.gpu.holding([BUILT / "load", "idle", "1000"], "ready", bench.gpu.give(request=70)):
        (done,) = await bench.compete(OURS, [Tenant(30, 100, "async", 1000)])
    used = done.percent * 100 / whole["async"]
    returns = []
    for _ in range(3):
        late = Tenant(70, 100, "sync", 1000, after_ms=bench.warm_ms + 500)
        done_both = await bench.compete(OURS, [Tenant(30, 100, "async", 1000), late])
        returns.append(done_both[1].first_ms - 1)  # minus its own kernel
    bench.report.say(f"\nbeside an idle neighbour: {used:.2f} % of native alone")
    bench.report.say(
        f"a neighbour that returns is served after {statistics.median(returns):.1f} ms (worst {max(returns):.1f})"
    )
    bench.report.add("elastic.beside_idle", used, "%", against="native alone", goal=100.0)
    bench.report.add("elastic.yield", returns, "ms", against="goal", goal=20.0)


async def latency(bench: Bench) -> None:
    """Time requests of 2 ms, fifty a second, next to training that never pauses."""
    requests, training = Tenant(20, 100, "requests", 2000), Tenant(80, 100, "async", 1000)
    kinds = [
        ("alone", NATIVE, [requests]),
        ("beside training, time slicing", NATIVE, [requests, training]),
        ("beside training", OURS, [requests, training]),
        ("beside training, latency class", OURS, [dataclasses.replace(requests, latency=True), training]),
        *((f"beside training, {peer.name}", peer, [requests, training]) for peer in bench.peers),
    ]
    rows: list[list[str]] = []
    bench.report.table("Requests of 2 ms, fifty a second", ["", "p50 ms", "p99 ms", "training %"], rows)
    for name, mode, tenants in kinds:
        key = name.replace(", ", ".").replace(" ", "_")
        with bench.row(f"latency.{key}.{mode.name}"):
            done = await bench.compete(mode, tenants)
            p50, p99 = done[0].quantile(0.5), done[0].quantile(0.99)
            rest = f"{done[1].percent:.2f}" if len(done) > 1 else ""
            rows.append([name, f"{p50:.2f}", f"{p99:.2f}", rest])
            bench.report.add(f"latency.{key}.{mode.name}.p99", p99, "ms", against="kernel", goal=2.0)


async def handover(bench: Bench) -> None:
    """Measure the time that two tenants lose together, by the length of a lease."""
    whole = await alone(bench)
    rows: list[list[str]] = []
    bench.report.table("Loss by handovers, two tenants that never pause", ["turn ms", "lost %"], rows)
    for length_ms in TURNS_MS:
        with turns_of(length_ms):
            done = await bench.compete(OURS, [Tenant(50, 100, "async", 1000)] * 2)
        lost = 100 - sum(tenant.percent for tenant in done) * 100 / whole["async"]
        bench.report.add(f"handover.{length_ms}ms.lost", lost, "%", against="goal", goal=1.0)
        rows.append([str(length_ms), f"{lost:.2f}"])
