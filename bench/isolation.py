"""Pairs of tenants on one simulated GPU, by the isolation of their shares: work, lateness, shares, memory limits.

none: without the library, so the driver lets the processes take turns of 2 ms. arbiter: leases. mps: side by side under
the MPS daemon that the agent runs, with the library. partitions: likewise, in equal static SM partitions, for pairs
with equal requests. auto: what gpushare chooses for both, without partitions; its row repeats that kind's.
Work is the steps in percent of those of a tenant that has the GPU alone; of requests and bursts, it is their kernels'
part of the time. The shipped code runs. The GPU is simulated, with the parameters that give two language models the
published figures (bench/simulated_time.py), so no figure says anything about caches or bandwidth.

Prints a table, then one JSON object a line per figure. Run: `python bench/isolation.py [--seconds N] [--results
DIRECTORY]`; with four seconds a case it takes four minutes. With --results it writes a page and a plot there, which
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from launches import cores, plots
from launches import node as nodes
from launches.node import Done, Node, Tenant
from launches.report import Report
from programs import decoding

from gpushare import isolation, request
from gpushare.allocation import Isolation
from tests import builders
from tests.interposer import container

NONE, ARBITER, MPS, PARTITIONS, AUTO = "none", "arbiter", "mps", "partitions", "auto"
MEASURED: Final = (NONE, ARBITER, MPS, PARTITIONS)
DEDICATED_SECONDS: Final = 2.0
REQUESTS: Final = 8  # of both models together
PUBLISHED: Final = {
    NONE: decoding.SLICED[decoding.REQUESTS.index(REQUESTS)],
    MPS: decoding.MPS[decoding.REQUESTS.index(REQUESTS)],
}
LATE: Final = ("requests", "bursts")  # modes with a given amount of work, whose pieces each have a latency
AIM: Final = 0.03  # how much less than the best `auto` may do
HEAD: Final = ("pair", "isolation", "work, % of dedicated", "of each", "share error, points", "p99 ms", "memory limit")
WHY_BEHIND: Final = """\
auto keeps the request first and raises the throughput second: without a limit equal to the request, mps keeps no
request (its pair 30/70 errs by 20 points), and mps cannot be combined with latency. Where throughput matters more, an
administrator makes mps the default, or a pod sets its limit to its request and gets mps by auto.
"""
LEFT_OUT: Final = "mig is left out: a share has its device alone, so its figures follow from the profile"


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
        return not any(tenant.mode in LATE for tenant in self.tenants)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """The results of a pair. work: each tenant's, in percent of what a dedicated GPU does; p99_ms: of the latencies."""

    work: tuple[float, float]
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


def _model(requests: float, percent: int) -> Tenant:
    return Tenant(percent, 100, "steps", round(decoding.step_ns(requests) / 1000), kernel=KERNEL)


def _steady(percent: int, limit: int = 100) -> Tenant:
    return Tenant(percent, limit, "async", 1000)


KERNEL: Final = f"decode_{decoding.KERNEL_PERCENT}pct_ns"
SERVICE: Final = Tenant(20, 100, "requests", 2000)
PAIRS: Final = (
    Pair("decode", "two models that decode, 50/50", (_model(REQUESTS / 2, 50),) * 2, _model(REQUESTS, 100)),
    Pair(
        "decode_limits",
        "two models that decode, with these limits",
        (dataclasses.replace(_model(REQUESTS / 2, 50), limit=50),) * 2,
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
    first, second = (isolation.kinds(_asked(tenant), AUTO) for tenant in pair.tenants)
    return str(next(kind for kind in first if kind in second))


def _asked(tenant: Tenant) -> request.Request:
    pod = builders.pod(
        request=str(tenant.request / 100),
        limit=str(tenant.limit / 100),
        memory="1Gi",
        latency="true" if tenant.latency else "false",
    )
    return request.parse(pod)


async def dedicated(tenant: Tenant) -> Done:
    """Measure a tenant that has the GPU alone, without the library."""
    async with _node() as node:
        (done,) = await node.run([tenant], DEDICATED_SECONDS, native=True)
        return done


async def measure(pair: Pair, kind: str, alone: Sequence[Done], seconds: float) -> Row:
    """Measure a pair under one isolation. Afterwards, its first tenant allocates as much as it can."""
    tenants = pair.tenants
    if kind != ARBITER:  # only leases know latency, and MPS shares cannot ask for it
        tenants = (tenants[0], dataclasses.replace(tenants[1], latency=False))
    in_space = kind in {MPS, PARTITIONS}
    async with _node() as node, contextlib.AsyncExitStack() as stack:
        if in_space:
            await stack.enter_async_context(node.mps(pair.partitions if kind == PARTITIONS else 0))
        given = Isolation.MPS if in_space else Isolation.ARBITER
        done = await node.run(tenants, seconds, native=kind == NONE, isolation=given)
        memory = await _memory(node, kind)
    first, second = (_work(*three, pair) for three in zip(done, tenants, alone, strict=True))
    requested = 100 * tenants[0].request / sum(tenant.request for tenant in tenants)
    error = abs(100 * first / (first + second) - requested) if pair.never_pauses else None
    late = next((one for one in done if one.latencies_ms), None)
    return Row((first, second), error, late.quantile(0.99) if late is not None else None, memory)


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
    environment = {"TEST_POD": name, "TEST_CONTAINER": "main", "CUDA_VISIBLE_DEVICES": "0"}
    box = dataclasses.replace(node.box, preload=()) if kind == NONE else node.box
    if kind in {MPS, PARTITIONS}:
        box = await node.mps_box(name)
    result = await asyncio.to_thread(box.run, [container.PROBE, "--fill"], environment)
    assert result.returncode == 0, result.stdout + result.stderr
    filled = int(result.stdout.splitlines()[-1].removeprefix("filled "))
    if filled > nodes.MEMORY_BYTES:
        return f"no: {filled / nodes.MEMORY_BYTES:.0f} times as much"
    return f"kept, by the {'library' if container.lines_of_the_library(result.stderr) else 'driver'}"


def _node() -> contextlib.AbstractAsyncContextManager[Node]:
    return nodes.opened(lambda gpus: decoding.create(gpus.parent))


async def measure_all(report: Report) -> None:
    """Measure all pairs, and add their rows and figures to the report."""
    table: list[list[str]] = []
    known: dict[Tenant, Done] = {}
    behind: list[str] = []
    for pair in PAIRS:
        alone = []
        for tenant in pair.tenants:
            what = dataclasses.replace(pair.one or tenant, request=100, limit=100, latency=False)
            if what not in known:
                known[what] = await dedicated(what)
            alone.append(known[what])
        soonest_ms = next((one.quantile(0.99) for one in alone if one.latencies_ms), None)
        table.append([pair.title, "dedicated", "100.0", "", "", _text(soonest_ms), ""])
        rows = {
            kind: await measure(pair, kind, alone, report.seconds)
            for kind in MEASURED
            if kind != PARTITIONS or pair.partitions
        }
        chosen = auto(pair)
        for kind, row in rows.items():
            table.append(["", kind, *_cells(row)])
            _add(report, pair, kind, row, soonest_ms)
        table.append(["", f"{AUTO}: {chosen}", *_cells(rows[chosen])])
        best = _add_auto(report, pair, rows, chosen)
        behind += [pair.title] if rows[chosen].total < (1 - AIM) * best else []
        report.record_busy_cores()
        print(f"{pair.title}: measured", file=sys.stderr)
    report.say(tabulate.tabulate(table, HEAD, tablefmt="github", disable_numparse=True))
    near = f"auto does less than {100 * (1 - AIM):g} % of the best work in {len(behind)} of {len(PAIRS)} pairs"
    report.say(f"\n{near}{': ' if behind else ''}{'; '.join(behind)}.\n")
    report.say(WHY_BEHIND)
    report.say(f"{LEFT_OUT}.")


def _cells(row: Row) -> list[str]:
    each = " + ".join(f"{part:.1f}" for part in row.work)
    return [f"{row.total:.1f}", each, _text(row.share_error), _text(row.p99_ms), row.memory]


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
    report.add(f"{pair.name}.{kind}.memory_limit_kept", row.is_limited, "", goal=1.0)


def _add_auto(report: Report, pair: Pair, rows: Mapping[str, Row], chosen: str) -> float:
    """Compare with the best of the others, by work and by lateness. Return the best work."""
    row, best = rows[chosen], max(other.total for other in rows.values())
    report.add(f"{pair.name}.{AUTO}.work", row.total, "%", goal=best, against="best")
    if row.p99_ms is not None:
        soonest = min(other.p99_ms for other in rows.values() if other.p99_ms is not None)
        report.add(f"{pair.name}.{AUTO}.p99", row.p99_ms, "ms", goal=soonest, against="best")
    report.add(f"{pair.name}.{AUTO}.memory_limit_kept", row.is_limited, "", goal=1.0)
    return best


def _plot(axis: Any, values: dict[str, float]) -> bool:
    """Draw each pair's work by isolation; a dot is the choice of `auto`."""
    colours = {NONE: plots.NATIVE, ARBITER: plots.OURS, MPS: "#2ca02c", PARTITIONS: "#9467bd"}
    for position, (kind, colour) in enumerate(colours.items()):
        places = [number + 0.2 * (position - 1.5) for number in range(len(PAIRS))]
        works = [values.get(f"isolation.{pair.name}.{kind}.work", 0.0) for pair in PAIRS]
        axis.bar(places, works, 0.19, color=colour, label=kind)
    chosen = [values.get(f"isolation.{pair.name}.{AUTO}.work") for pair in PAIRS]
    dots = [(number, work) for number, work in enumerate(chosen) if work is not None]
    if dots:
        axis.scatter(*zip(*dots, strict=True), color=plots.AIM, zorder=3, label=AUTO)
    axis.set_xticks(
        range(len(PAIRS)), [pair.title.replace(", ", ",\n").replace(" with ", "\nwith ") for pair in PAIRS], fontsize=7
    )
    axis.set_ylabel("work of both, % of a dedicated GPU")
    axis.legend(fontsize=8, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0))
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
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each case is counted (%(default)s)")
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
