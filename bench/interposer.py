"""The library and the arbiter: launch cost, accuracy of shares and limits, and the cost of handovers.

The shipped code runs; only the GPU is simulated. Its kernels take their time without computing, and processes without
the library take turns of 2 ms on it, as on real hardware: that is the baseline. Where allowed, the processes run at
real-time priority, and the cores are kept awake, because a simulated GPU waits for a core and a real one does not. The
load of the machine is printed in any case.

Prints tables, then one JSON object a line per figure. Run: `python bench/interposer.py [--seconds N] [--only NAME,...]
[--results DIRECTORY]`; with ten seconds a case it takes twelve minutes. With --results it writes a page and plots
there, which needs matplotlib.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from launches import cores
from launches import node as nodes
from launches.node import Node, Tenant
from launches.report import Report

from tests.interposer import container

WORKLOADS: Mapping[str, tuple[str, int]] = {
    "async": ("async", 1000),
    "sync": ("sync", 1000),
    "tiny": ("async", 20),
    "graph": ("graph", 1000),
}
SPLITS = ((30, 70), (10, 90), (50, 50))
CAPS = (10, 30, 50, 70)
GIB = 1 << 30
CONTAINERS = 200


async def launch_cost(node: Node, report: Report) -> None:
    """Measure the nanoseconds of a launch on a driver that does nothing, alone on the GPU and with a neighbour."""
    node.arbiter.server.leases.settled_ns = 0
    bare, ours, lock, *_ = await _rate(node)
    async with node.neighbour():
        _, counted, _, *ways = await _rate(node)
    report.say(
        f"a launch: bare {bare:.2f} ns, with the gate {ours:.2f} ns, counted {counted:.2f} ns, "
        f"with a lock and a clock {lock:.2f} ns"
    )
    report.add("launch.added", ours - bare, "ns", goal=2.0)
    report.add("launch.counted.added", counted - bare, "ns", goal=lock - bare, against="lock and clock")
    for name, ns in zip(("in a stream", "in two streams in turn", "in two threads at once"), ways, strict=True):
        report.say(f"counted, {name}: {ns:.2f} ns")
        report.add(f"launch.counted.{name.replace(' ', '_')}.added", ns - bare, "ns", goal=lock - bare)
    report.say()
    report.add("launch.lock_and_clock.added", lock - bare, "ns", goal=max(ours - bare, 0.1), against="ours")


async def _rate(node: Node) -> list[float]:
    environment = {
        **node.give(100, 100),
        "LD_LIBRARY_PATH": str(nodes.BUILT / "null"),
        "NULL_DRIVER_UUID": node.uuid.removeprefix("GPU-").replace("-", ""),
    }
    result = await asyncio.to_thread(node.box.run, [nodes.BUILT / "rate"], environment)
    return [float(word) for word in result.stdout.split()]


async def allocation(node: Node, report: Report) -> None:
    """Measure allocate and release in nanoseconds: with nothing allocated, with 4,000 live, and from a stream's
    pool.
    """
    bare = dataclasses.replace(node.box, preload=())
    runs = []
    for _ in range(5):
        for box in (bare, node.box):
            result = await asyncio.to_thread(box.run, [nodes.BUILT / "calls"], node.give(100, 100))
            runs.append({name: float(ns) for name, ns in map(str.split, result.stdout.splitlines())})
    report.say(f"{'a pair, ns':<24}{'bare':>8}{'ours':>8}{'added':>8}")
    for name in ("alloc_pair", "alloc_pair_4000_live", "alloc_async_pair"):
        native, ours = (min(run[name] for run in some) for some in (runs[::2], runs[1::2]))
        report.say(f"{name:<24}{native:>8.0f}{ours:>8.0f}{ours - native:>8.0f}")
        report.add(f"{name}.added", ours - native, "ns", goal=native, against="simulated driver")
    report.say()


async def caps(node: Node, report: Report) -> None:
    """Measure one tenant with a limit, alone on the GPU."""
    report.say(f"{'limit, alone':<14}" + "".join(f"{name:>9}" for name in WORKLOADS))
    alone = {name: (await node.run([Tenant(5, 100, *load)], 2.0))[0].percent for name, load in WORKLOADS.items()}
    report.say(f"{'none':<14}" + "".join(f"{alone[name]:>9.2f}" for name in WORKLOADS))
    worst = 0.0
    for limit in CAPS:
        got = {}
        for name, load in WORKLOADS.items():
            (done,) = await node.run([Tenant(5, limit, *load)], report.seconds)
            got[name] = done.percent * 100 / alone[name]
            worst = max(worst, abs(got[name] - limit))
            report.add(f"cap.{limit}.{name}", got[name], "%", goal=limit, against="limit")
        report.say(f"{limit:<14}" + "".join(f"{got[name]:>9.2f}" for name in WORKLOADS))
    report.say("in percent of what it does without a limit\n")
    report.add("cap.worst_error", worst, "points", goal=1.0)


async def splits(node: Node, report: Report) -> None:
    """Measure two tenants that always want the GPU."""
    pairs = [(name, name) for name in WORKLOADS] + [("async", "sync"), ("tiny", "graph")]
    report.say(f"{'requests':<10}{'workloads':<16}{'shares':>18}{'sum of parts':>14}{'without leases':>22}{'sum':>8}")
    worst, lost = 0.0, 0.0
    alone = {name: (await node.run([Tenant(5, 100, *load)], 2.0))[0].percent for name, load in WORKLOADS.items()}
    for request, other in SPLITS:
        for first, second in pairs:
            tenants = [Tenant(request, 100, *WORKLOADS[first]), Tenant(other, 100, *WORKLOADS[second])]
            rates = (alone[first], alone[second])
            share, total = _parts(await node.run(tenants, report.seconds), rates)
            # The GPU's own time slices ignore requests: a few seconds are enough to show that.
            native, sliced = _parts(await node.run(tenants, min(report.seconds, 2.0), native=True), rates)
            worst, lost = max(worst, abs(share - request)), max(lost, 100 - total)
            report.say(
                f"{request}/{other:<7}{first + ', ' + second:<16}{share:>9.2f}/{100 - share:<8.2f}{total:>13.2f}"
                f"{native:>14.2f}/{100 - native:<7.2f}{sliced:>8.2f}"
            )
            report.add(f"split.{request}.{first}.{second}", share, "%", goal=request, against="request")
            report.add(f"native.{request}.{first}.{second}", native, "%", goal=request, against="request")
            report.add(f"split.{request}.{first}.{second}.lost", 100 - total, "%", goal=1.0)
    report.say()
    report.add("split.worst_error", worst, "points", goal=1.0)
    report.add("split.most_lost", lost, "%", goal=1.0)


def _parts(done: list[nodes.Done], rates: tuple[float, float]) -> tuple[float, float]:
    """Return the first tenant's share of the work, and the total relative to one tenant alone, in percent."""
    parts = [tenant.percent * 100 / rate for tenant, rate in zip(done, rates, strict=True)]
    return 100 * parts[0] / sum(parts), sum(parts)


async def elasticity(node: Node, report: Report) -> None:
    """Measure how much of an idle neighbour's time is used, and how fast the neighbour gets it back."""
    (alone,) = await node.run([Tenant(30, 100, "async", 1000)], 2.0)
    yields = []
    for _ in range(5):
        both = [Tenant(30, 100, "async", 1000), Tenant(70, 100, "sync", 1000, after_ms=3300)]
        done = await node.run(both, 2.0)
        yields.append(done[1].first_ms - 1)  # minus its own kernel
    idle = [Tenant(30, 100, "async", 1000), Tenant(70, 100, "async", 1000, after_ms=60_000_000)]
    used = await _beside_idle(node, idle[0], report)
    report.say(f"alone {alone.percent:.2f} %, beside an idle neighbour {used:.2f} %")
    report.say(
        f"a neighbour that returns is served after {statistics.median(yields):.1f} ms, at worst {max(yields):.1f} ms\n"
    )
    report.add("elastic.beside_idle", used, "%", goal=alone.percent, against="alone")
    report.add("elastic.yield", max(yields), "ms", goal=20.0)


async def _beside_idle(node: Node, tenant: Tenant, report: Report) -> float:
    """Run the tenant while a connected process that has used the GPU sleeps."""
    async with node.neighbour():
        (done,) = await node.run([tenant], min(report.seconds, 5.0))
    return done.percent


async def latency(node: Node, report: Report) -> None:
    """Measure fifty requests of 2 ms a second, next to training that always wants the GPU."""
    report.say(f"{'2 ms requests':<28}{'p50 ms':>8}{'p99 ms':>8}{'training %':>12}")
    training = Tenant(80, 100, "async", 1000)
    kinds = {
        "alone": [Tenant(20, 100, "requests", 2000)],
        "beside": [Tenant(20, 100, "requests", 2000), training],
        "beside, latency class": [Tenant(20, 100, "requests", 2000, latency=True), training],
    }
    kinds["beside, without leases"] = kinds["beside"]
    for name, tenants in kinds.items():
        done = await node.run(tenants, report.seconds, native="without" in name)
        rest = f"{done[1].percent:>12.2f}" if len(done) > 1 else ""
        p50, p99 = done[0].quantile(0.5), done[0].quantile(0.99)
        report.say(f"{name:<28}{p50:>8.2f}{p99:>8.2f}{rest}")
        label = name.replace(", ", "_").replace(" ", "_")
        aim, against = (5.0, "goal") if "class" in name else (2.0, "kernel")
        report.add(f"latency.{label}.p99", p99, "ms", goal=aim, against=against)
    report.say()


async def handover(node: Node, report: Report) -> None:
    """Measure the time that two tenants lose, by the length of turns."""
    report.say(f"{'turn ms':<10}{'done %':>8}{'turns a second':>16}")
    for length_ms in (5, 10, 20, 30, 50, 100):
        with nodes.turns_of(length_ms):
            done = await node.run([Tenant(50, 100, "async", 1000)] * 2, min(report.seconds, 5.0))
        shares = [tenant.percent for tenant in done]
        report.say(f"{length_ms:<10}{sum(shares):>8.2f}{1000 / length_ms:>16.0f}")
        report.add(f"handover.{length_ms}ms.lost", 100 - sum(shares), "%", goal=1.0)
    report.say()


async def reclaim(node: Node, report: Report) -> None:
    """Kill a process that holds lease and memory, and measure when the next one has both."""
    environment = node.give(50, 100, memory=GIB)
    memory, lease = [], []
    for _ in range(5):
        holder = node.box.start([container.PROBE, "--allocate", str(GIB), "--hold", "60"], environment)
        await asyncio.to_thread(nodes.until_holding, holder)
        holder.kill()
        started = time.monotonic()
        while True:
            result = await asyncio.to_thread(node.box.run, [container.PROBE, "--allocate", str(GIB)], environment)
            if f"allocated {GIB}" in result.stdout:
                break
            assert time.monotonic() < started + 10, result.stdout
        memory.append((time.monotonic() - started) * 1000)
        await asyncio.to_thread(holder.communicate)
    lease += [await _killed_in_lease(node) for _ in range(5)]
    report.say(f"killed holding 1 GiB: the next process starts and has it within {max(memory):.0f} ms")
    report.say(f"killed holding the lease: the next launch is done within {max(lease):.1f} ms\n")
    report.add("reclaim.memory", max(memory), "ms", goal=1000.0)
    report.add("reclaim.lease", max(lease), "ms", goal=20.0)


async def _killed_in_lease(node: Node) -> float:
    holder = node.box.start([nodes.BUILT / "load", "async", "1000"], node.give(50, 100))
    waiting = node.box.start([nodes.BUILT / "load", "sync", "1000"], node.give(50, 100))
    assert holder.stdin is not None
    try:
        for process in (holder, waiting):
            await asyncio.to_thread(nodes.until_ready, process)
        now = int(time.monotonic() * 1000)
        holder.stdin.write(f"{now} {now} {now + 60_000}\n")
        holder.stdin.flush()
        await asyncio.sleep(0.5)
        at = int(time.monotonic() * 1000)
        answer = asyncio.create_task(asyncio.to_thread(waiting.communicate, f"{at} {at} {at}\n", timeout=10))
        holder.kill()
        output, _ = await answer
    finally:
        for process in (holder, waiting):
            if process.poll() is None:
                process.kill()
        await asyncio.to_thread(holder.communicate)
    return float(output.split()[2]) - 1


async def info(node: Node, report: Report) -> None:
    """Measure the arbiter's CPU time with two hundred containers on the node, none of which waits for another."""
    for name, working in (("idle", 0), ("each GPU used by one of them", node.gpu_count)):
        async with node.info(CONTAINERS, working=working):
            await asyncio.sleep(2.0)
            before, started = time.process_time(), time.monotonic()
            await asyncio.sleep(report.seconds)
            percent = 100 * (time.process_time() - before) / (time.monotonic() - started)
        report.say(f"{CONTAINERS} containers, {name}: the arbiter takes {percent:.2f} % of a core")
        report.add(f"crowd.{'working' if working else 'idle'}", percent, "% of a core", goal=2.0)
    report.say()


async def start(node: Node, report: Report) -> None:
    """Start sixteen processes of one container at once."""
    environment = node.give(50, 100)
    started = time.monotonic()
    runs = [asyncio.to_thread(node.box.run, [container.PROBE, "--kernels", "1"], environment) for _ in range(16)]
    results = await asyncio.gather(*runs)
    ours = (time.monotonic() - started) * 1000
    assert all(result.returncode == 0 for result in results)
    bare = dataclasses.replace(node.box, preload=())
    started = time.monotonic()
    await asyncio.gather(*(asyncio.to_thread(bare.run, [container.PROBE, "--kernels", "1"]) for _ in range(16)))
    without = (time.monotonic() - started) * 1000
    report.say(
        f"16 processes from start to end of a first kernel: {ours:.0f} ms, without the library {without:.0f} ms\n"
    )
    report.add("start.16", ours, "ms", goal=without, against="without the library")


CASES: Mapping[str, Callable[[Node, Report], Awaitable[None]]] = {
    "launch": launch_cost,
    "allocation": allocation,
    "start": start,
    "reclaim": reclaim,
    "elasticity": elasticity,
    "latency": latency,
    "handover": handover,
    "caps": caps,
    "splits": splits,
    "crowd": info,
}


async def measure(names: list[str], report: Report) -> None:
    for name in names:
        async with nodes.opened() as node:
            await CASES[name](node, report)
        report.record_busy_cores()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each case is counted (%(default)s)")
    parser.add_argument("--only", default=",".join(CASES), help="comma list (%(default)s)")
    parser.add_argument("--results", type=Path, help="where to write a page with plots, such as bench/results")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    nodes.build()
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    report = Report(arguments.seconds)
    report.say(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before, {arguments.seconds:g} seconds a case\n")
    with cores.kept_awake():
        asyncio.run(measure(names, report))
    print(f"load at the end {os.getloadavg()[0]:.1f}\n")
    report.print_figures()
    if arguments.results:
        print(f"\nwritten to {report.write(arguments.results)}")


if __name__ == "__main__":
    main()
