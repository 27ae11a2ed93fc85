"""Pairs of tenants on one simulated GPU, by the isolation of their shares: work, requests, lateness, memory limits.

none: without the library, so the driver lets the processes take turns of 2 ms. arbiter: leases. mps: side by side under
the MPS daemon that the agent runs, with the library. partitions: likewise, in equal static SM partitions, for pairs
with equal requests. mig: in the two largest MIG devices that an A100 can have together, a 4g.40gb, for the larger
request, and a 3g.40gb. auto: what gpushare chooses for both, without partitions; its row repeats that kind's.
Decoding is two language models; training and steady programs never pause; a service gets fifty requests a second.
Work is the steps in percent of those of a tenant that has the GPU alone; of requests and bursts, it is their kernels'
part of the time. Requests are kept if each tenant does at least its request's part of what it does alone, or all that
it wants, also next to a neighbour that never pauses. The shipped code runs. The GPU is simulated, with the parameters
that give two language models the published figures (bench/simulated_time.py), so no figure says anything about caches
or bandwidth.

Prints a table, then one JSON object a line per figure. Run: `python bench/isolation.py [--seconds N] [--results
DIRECTORY]`; with three seconds a case it takes seven minutes. With --results it writes a page and a plot there, which
needs matplotlib.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import datetime
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from launches import cores, plots
from launches import node as nodes
from launches.node import Done, Node, Tenant
from launches.pairs import PAIRS, PERIODS_MS, REQUESTS, Pair, auto
from launches.report import Report
from programs import decoding

from gpushare.allocation import Isolation
from tests.interposer import container

NONE, ARBITER, MPS, PARTITIONS, MIG, AUTO = "none", "arbiter", "mps", "partitions", "mig", "auto"
MEASURED: Final = (NONE, ARBITER, MPS, PARTITIONS, MIG)
DEDICATED_SECONDS: Final = 2.0
PUBLISHED: Final = {
    NONE: decoding.SLICED[decoding.REQUESTS.index(REQUESTS)],
    MPS: decoding.MPS[decoding.REQUESTS.index(REQUESTS)],
}
KEPT: Final = "kept"
AIM: Final = 0.03  # how much less than the best `auto` may do
REQUEST_POINTS: Final = 2.5  # how much less than its request a tenant may get; half a GPU is a partition of 48 %
HEAD: Final = (
    "pair",
    "isolation",
    "work, % of dedicated",
    "of each",
    "share error, points",
    "requests",
    "p99 ms",
    "memory",
)
WHY: Final = """\
In both, mps keeps the requests only as long as no share wants more than an equal part: it divides the GPU among the
processes, so that a third one, or larger requests such as 30/70, take from the others. A pod whose limit equals its
request gets mps by auto; an administrator can make mps the default.

mig is never the best, so auto loses nothing by never choosing it: the two largest devices have 91 % of the GPU's
multiprocessors, and lend nothing. Two programs that never pause keep their requests there only if these add up to less.
The simulation slows a kernel on a MIG device by the multiprocessors alone; of the memory's bandwidth, which limits
decoding, each of the two devices has half.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """The results of a pair. work: each tenant's, in percent of what a dedicated GPU does; p99_ms: of the latencies.

    requests: whether both are kept, and if not, what a tenant got.
    """

    work: tuple[float, float]
    requests: str
    share_error: float | None
    p99_ms: float | None
    memory: str

    @property
    def total(self) -> float:
        """Return the work of both."""
        return sum(self.work)

    @property
    def is_limited(self) -> bool:
        """Whether the memory limit held."""
        return self.memory.startswith("kept")

    @property
    def is_guaranteed(self) -> bool:
        """Whether requests and memory limit held."""
        return self.is_limited and self.requests == KEPT


class Bench:
    """Measures pairs. It measures what several pairs have in common once."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._alone: dict[Tenant, Done] = {}
        self._measured: dict[tuple[str, tuple[Tenant, Tenant]], tuple[list[Done], str]] = {}

    async def alone(self, tenant: Tenant) -> Done:
        """Measure a tenant that has the GPU alone, without the library."""
        what = dataclasses.replace(tenant, request=100, limit=100, latency=False)
        if what not in self._alone:
            async with _node() as node:
                (self._alone[what],) = await node.run([what], DEDICATED_SECONDS, native=True)
        return self._alone[what]

    async def row(self, pair: Pair, kind: str) -> Row:
        """Measure a pair under one isolation."""
        done, memory = await self._pair(kind, pair.tenants)
        references = [await self.alone(pair.one or tenant) for tenant in pair.tenants]
        first, second = (_work(*three, pair) for three in zip(done, pair.tenants, references, strict=True))
        requested = 100 * pair.tenants[0].request / sum(tenant.request for tenant in pair.tenants)
        error = abs(100 * first / (first + second) - requested) if pair.never_pauses else None
        late = next((one for one in done if one.latencies_ms), None)
        p99_ms = late.quantile(0.99) if late is not None else None
        return Row((first, second), await self._requests(pair, kind), error, p99_ms, memory)

    async def _requests(self, pair: Pair, kind: str) -> str:
        """Return whether each tenant gets its request, next to the other one and to one that never pauses."""
        for place, tenant in enumerate(pair.tenants):
            other = pair.tenants[1 - place]
            greedy = dataclasses.replace(other, mode="async", kernel_us=1000, kernel="")
            for neighbour in dict.fromkeys((other, greedy)):
                tenants = (tenant, neighbour) if place == 0 else (neighbour, tenant)
                own, alone = (await self._pair(kind, tenants))[0][place], await self.alone(tenant)
                got = 100 * own.percent / alone.percent
                if tenant.mode in PERIODS_MS:
                    if own.quantile(0.5) > PERIODS_MS[tenant.mode]:
                        return f"no: {own.quantile(0.5):.0f} ms for each of the {tenant.mode}"
                elif got < tenant.request - REQUEST_POINTS:
                    return f"no: {got:.0f} of {tenant.request} %"
        return KEPT

    async def _pair(self, kind: str, tenants: tuple[Tenant, Tenant]) -> tuple[list[Done], str]:
        """Return what two tenants do, and whether the memory limit of the first one holds."""
        if kind != ARBITER:  # only leases know latency, and MPS shares cannot ask for it
            tenants = (tenants[0], dataclasses.replace(tenants[1], latency=False))
        if (kind, tenants) not in self._measured:
            self._measured[kind, tenants] = await self._measure(kind, tenants)
        return self._measured[kind, tenants]

    async def _measure(self, kind: str, tenants: tuple[Tenant, Tenant]) -> tuple[list[Done], str]:
        given = {MPS: Isolation.MPS, PARTITIONS: Isolation.MPS, MIG: Isolation.MIG}.get(kind, Isolation.ARBITER)
        async with _node() as node, contextlib.AsyncExitStack() as stack:
            if given is Isolation.MPS:
                partitions = 100 // tenants[0].request if kind == PARTITIONS else 0
                await stack.enter_async_context(node.mps(partitions))
            if kind == MIG:
                node.cut(first_is_larger=tenants[0].request >= tenants[1].request)
            done = await node.run(tenants, self._seconds, native=kind == NONE, isolation=given)
            return done, await _memory(node, kind)


def _work(own: Done, tenant: Tenant, alone: Done, pair: Pair) -> float:
    """Return a tenant's work in percent of a dedicated GPU's: by its steps, or the time that its requests take."""
    if own.latencies_ms:
        return own.percent
    reference = pair.one or tenant
    ratio = (own.percent / tenant.kernel_us) / (alone.percent / reference.kernel_us)
    return 100 * ratio * (0.5 if pair.one is not None else 1)


async def _memory(node: Node, kind: str) -> str:
    """Let the first tenant allocate as much as it can; return whether its limit held, and what enforced it."""
    name = node.arbiter.allocations[0].pod.name
    environment = nodes.identity(name) | ({"NVIDIA_VISIBLE_DEVICES": node.devices[0].uuid} if kind == MIG else {})
    box = dataclasses.replace(node.box, preload=()) if kind in {NONE, MIG} else node.box
    if kind in {MPS, PARTITIONS}:
        box = await node.mps_box(name)
    result = await asyncio.to_thread(box.run, [container.PROBE, "--fill"], environment)
    assert result.returncode == 0, result.stdout + result.stderr
    filled = int(result.stdout.splitlines()[-1].removeprefix("filled "))
    if kind == MIG:
        return f"kept, by the device: {filled / 2**30:.1f} GiB" if filled <= node.devices[0].memory_bytes else "no"
    if filled > nodes.MEMORY_BYTES:
        return f"no: {filled / nodes.MEMORY_BYTES:.0f} times as much"
    return f"kept, by the {'library' if container.lines_of_the_library(result.stderr) else 'driver'}"


def _node() -> contextlib.AbstractAsyncContextManager[Node]:
    return nodes.opened(lambda gpus: decoding.create(gpus.parent))


async def measure_all(report: Report) -> None:
    """Measure all pairs, and add their rows and figures to the report."""
    table: list[list[str]] = []
    bench = Bench(report.seconds)
    behind: list[str] = []
    for pair in PAIRS:
        alone = [await bench.alone(pair.one or tenant) for tenant in pair.tenants]
        soonest_ms = next((one.quantile(0.99) for one in alone if one.latencies_ms), None)
        table.append([pair.title, "dedicated", "100.0", "", "", "", _text(soonest_ms), ""])
        rows = {kind: await bench.row(pair, kind) for kind in MEASURED if kind != PARTITIONS or pair.partitions}
        chosen = auto(pair)
        for kind, row in rows.items():
            table.append(["", kind, *_cells(row)])
            _add(report, pair, kind, row, soonest_ms)
        best, percent = _add_auto(report, pair, rows, chosen)
        table.append(["", f"{AUTO}: {chosen}", *_cells(rows[chosen])])
        if percent < 100 * (1 - AIM):
            behind.append(f"{pair.title} ({percent:.1f} % of {best})")
        report.record_busy_cores()
        print(f"{pair.title}: measured", file=sys.stderr)
    report.say(tabulate.tabulate(table, HEAD, tablefmt="github", disable_numparse=True))
    near = f"In {len(PAIRS) - len(behind)} of {len(PAIRS)} pairs, auto does at least {100 * (1 - AIM):g} % of the work"
    others = f" The others: {'; '.join(behind)}." if behind else ""
    report.say(f"\n{near} of the best isolation that keeps the requests and the memory limit.{others}\n")
    report.say(WHY)


def _cells(row: Row) -> list[str]:
    each = " + ".join(f"{part:.1f}" for part in row.work)
    return [f"{row.total:.1f}", each, _text(row.share_error), row.requests, _text(row.p99_ms), row.memory]


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _add(report: Report, pair: Pair, kind: str, row: Row, soonest_ms: float | None) -> None:
    published = PUBLISHED.get(kind) if pair.one is not None else None
    against = ("dedicated", 100.0) if published is None else ("published", published)
    report.add(f"{pair.name}.{kind}.work", row.total, "%", goal=against[1], against=against[0])
    if row.share_error is not None:
        report.add(f"{pair.name}.{kind}.share_error", row.share_error, "points", goal=1.0)
    if row.p99_ms is not None and soonest_ms is not None:
        report.add(f"{pair.name}.{kind}.p99", row.p99_ms, "ms", goal=soonest_ms, against="dedicated")
    report.add(f"{pair.name}.{kind}.requests_kept", row.requests == KEPT, "", goal=1.0)
    report.add(f"{pair.name}.{kind}.memory_limit_kept", row.is_limited, "", goal=1.0)


def _add_auto(report: Report, pair: Pair, rows: Mapping[str, Row], chosen: str) -> tuple[str, float]:
    """Compare with the best by work and by lateness.

    Return the isolation that does the most work of those that keep requests and memory limit, and the percentage of
    its work that `auto` does.
    """
    row = rows[chosen]
    guaranteed = {kind: other for kind, other in rows.items() if other.is_guaranteed} or {chosen: row}
    best = max(guaranteed, key=lambda kind: guaranteed[kind].total)
    report.add(f"{pair.name}.{AUTO}.work", row.total, "%", goal=guaranteed[best].total, against="best that keeps both")
    if row.p99_ms is not None:
        soonest = min(other.p99_ms for other in rows.values() if other.p99_ms is not None)
        report.add(f"{pair.name}.{AUTO}.p99", row.p99_ms, "ms", goal=soonest, against="best")
    report.add(f"{pair.name}.{AUTO}.requests_kept", row.requests == KEPT, "", goal=1.0)
    report.add(f"{pair.name}.{AUTO}.memory_limit_kept", row.is_limited, "", goal=1.0)
    return best, 100 * row.total / guaranteed[best].total


def _plot(axis: Any, values: dict[str, float]) -> bool:
    """Draw each pair's work by isolation, pale without requests or memory limit; a dot is the choice of `auto`."""
    colours = {NONE: plots.NATIVE, ARBITER: plots.OURS, MPS: "#2ca02c", PARTITIONS: "#9467bd", MIG: "#ff7f0e"}
    for position, (kind, colour) in enumerate(colours.items()):
        places = [number + 0.16 * (position - 2) for number in range(len(PAIRS))]
        works = [values.get(f"isolation.{pair.name}.{kind}.work", 0.0) for pair in PAIRS]
        bars = axis.bar(places, works, 0.15, color=colour, label=kind)
        for pair, bar in zip(PAIRS, bars, strict=True):
            kept = (values.get(f"isolation.{pair.name}.{kind}.{what}_kept") for what in ("requests", "memory_limit"))
            bar.set_alpha(1.0 if all(kept) else 0.3)
    chosen = [values.get(f"isolation.{pair.name}.{AUTO}.work") for pair in PAIRS]
    dots = [(number, work) for number, work in enumerate(chosen) if work is not None]
    if dots:
        axis.scatter(*zip(*dots, strict=True), color=plots.AIM, zorder=3, label=AUTO)
    axis.set_xticks(
        range(len(PAIRS)),
        [pair.title.replace(", ", ",\n").replace(" with ", "\nwith ").replace("these ", "") for pair in PAIRS],
        fontsize=7,
    )
    axis.set_ylabel("work of both, % of a dedicated GPU\n(pale: requests or memory limit not kept)")
    axis.legend(fontsize=8, ncols=6, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return True


def write(report: Report, directory: Path) -> Path:
    """Write the page and its plot, and return the page's path."""
    day = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    (plot,) = plots.draw(report.figures, directory, f"{day}-isolation", {"work": _plot})
    first, *rest = (__doc__ or "").split("\n\n")
    page = [
        f"# Isolation, {day}",
        "",
        first,
        "",
        *rest[0].splitlines(),
        "",
        f"`python bench/isolation.py --seconds {report.seconds:g}`: {os.cpu_count()} cores ({platform.machine()}), "
        f"Python {platform.python_version()}, {min(report.busy):.1f} to {max(report.busy):.1f} of them busy meanwhile.",
        "",
        *report.lines,
        "",
        f"![{plot.stem}]({plot.name})",
        "",
    ]
    target = directory / f"{day}-isolation.md"
    target.write_text("\n".join(page))
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each case is counted (%(default)s)")
    parser.add_argument("--results", type=Path, help="where to write a page with a plot, such as bench/results")
    arguments = parser.parse_args()
    nodes.build()
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    report = Report(arguments.seconds, "isolation.")
    report.say(f"Load {os.getloadavg()[0]:.1f} before.\n")
    with cores.kept_awake():
        asyncio.run(measure_all(report))
    print(f"load at the end {os.getloadavg()[0]:.1f}\n")
    report.print_figures()
    if arguments.results:
        print(f"\nwritten to {write(report, arguments.results)}")


if __name__ == "__main__":
    main()
