"""Measure how faults, a SIGKILL, an arbiter restart and a live resize affect a neighbouring tenant.

The neighbour launches kernels of a millisecond and waits for each (`programs/beats.c`); the gaps between completions
show the time it lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.gpu import machine, trainings, workers
from bench.gpu.bench import Bench
from bench.gpu.modes import NATIVE, OURS, Mode
from bench.gpu.tenants import BUILT, Gpu, ProgramError, finish_all, wait_for

PROGRAMS = Path(__file__).with_name("programs")
KERNEL_US = "1000"
FAULTS = ("illegal", "trap", "assert")
KILLS = 5
KILL_AFTER_SECONDS = 0.4
LOOKS, LOOK_SECONDS = 1000, 0.002
SLICES_MS = 1000
END_SECONDS = 30.0
BEFORE, AFTER = (50, 50), (20, 80)


def built(name: str) -> Path:
    """Compile a program of `programs/`, linked against the simulated driver, which has the real one's names."""
    program = BUILT / name
    BUILT.mkdir(parents=True, exist_ok=True)
    driver = [f"-L{machine.SIMULATED}", "-l:libcuda.so.1", "-Wl,--allow-shlib-undefined"]
    source = PROGRAMS / f"{name}.c"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["gcc", "-std=c11", "-O2", "-Wall", "-o", program, source, *driver], check=True)
    return program


class Beats:
    """Completion times of a tenant's kernels, in seconds of the monotonic clock; `error` is set if it failed."""

    def __init__(self, moments: Sequence[float], error: str = "") -> None:
        self.moments = moments
        self.error = error

    def longest_ms(self, begin: float = 0.0, end: float = float("inf")) -> float:
        """Return the longest time between two completions that overlaps this interval."""
        pairs = itertools.pairwise(self.moments)
        return 1000 * max((later - sooner for sooner, later in pairs if later >= begin and sooner <= end), default=0.0)

    def next_ms(self, moment: float) -> float:
        """Return the time from a moment to the next completion. Raises ProgramError if there is none."""
        later = next((done for done in self.moments if done >= moment), None)
        if later is None:
            raise ProgramError("the neighbour completed no further kernel")
        return 1000 * (later - moment)

    def rate(self, begin: float, end: float) -> float:
        """Return kernels a second."""
        return sum(begin <= done <= end for done in self.moments) / (end - begin)


@contextlib.asynccontextmanager
async def beating(
    gpu: Gpu, mode: Mode, percent: int = 50, share: Mapping[str, str] | None = None
) -> AsyncIterator[Callable[[], Coroutine[Any, Any, Beats]]]:
    """Run a tenant while the context lasts; the yielded function stops it and returns its completions."""
    amounts = {"request": percent, "limit": 100 if mode.keeps_requests else percent}
    process = gpu.start(mode, [built("beats"), KERNEL_US], share, **amounts)

    async def end() -> Beats:
        output, errors = await asyncio.to_thread(process.communicate, "\n", timeout=END_SECONDS)
        error = "" if process.returncode == 0 else f"ended with {process.returncode}: {errors.strip()[-200:]}"
        return Beats([int(moment) / 1e6 for moment in output.split()], error)

    try:
        await asyncio.to_thread(wait_for, process, "ready")
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        yield end
    finally:
        await asyncio.to_thread(finish_all, [process])


async def faulting_tenant(bench: Bench) -> None:
    """Let one tenant's kernel fault next to a busy one: measure the time the other loses, and whether it survives."""
    rows: list[list[str]] = []
    head = ["fault", "", "driver's error", "longest gap before, ms", "longest after, ms", "neighbour"]
    bench.report.table("A busy tenant next to one whose kernel faults", head, rows)
    for mode in (NATIVE, OURS, *bench.peers):
        for kind in FAULTS if mode is OURS else FAULTS[:1]:
            name = f"fault.{kind}.{mode.name}"
            try:
                rows.append([kind, mode.name, *await _fault(bench, mode, kind, name)])
            except workers.ROW_ERRORS as error:
                rows.append([kind, mode.name, workers.failed(bench.report, name, error), *[""] * 3])


async def _fault(bench: Bench, mode: Mode, kind: str, name: str) -> list[str]:
    limit = 100 if mode.keeps_requests else 50
    faulty = bench.gpu.start(mode, [built("fault"), kind], None, request=50, limit=limit)
    try:
        await asyncio.to_thread(wait_for, faulty, "ready")
        async with beating(bench.gpu, mode) as end:
            begun = time.monotonic()
            await asyncio.sleep(bench.seconds / 2)
            moment = time.monotonic()
            said, errors = await asyncio.to_thread(faulty.communicate, "\n", timeout=END_SECONDS)
            await asyncio.sleep(bench.seconds / 2)
            beats = await end()
    finally:
        await asyncio.to_thread(finish_all, [faulty])
    if not said.startswith("failed"):
        raise ProgramError(f"fault: {errors.strip()[-500:]}")
    result = said.split()[1]
    if beats.error:
        bench.report.add(f"{name}.survived", 0, "")
        return [result, "", "", beats.error]
    bench.report.add(f"{name}.survived", 1, "")
    before, after = beats.longest_ms(begun, moment), beats.longest_ms(moment)
    bench.report.add(f"{name}.gap", after, "ms", against="before", goal=before or None)
    return [result, f"{before:.1f}", f"{after:.1f}", "goes on"]


async def kill_holding_lease(bench: Bench) -> None:
    """Kill a tenant with a second of work queued; measure the milliseconds until its neighbour's next completion."""
    rows: list[list[str]] = []
    head = ["", "to the next kernel, ms", "worst", "longest gap"]
    bench.report.table(f"A tenant is killed with its work queued, {KILLS} times", head, rows)
    for mode in (NATIVE, OURS, *bench.peers):
        name = f"kill.{mode.name}"
        try:
            moments = []
            async with beating(bench.gpu, mode) as end:
                for _ in range(KILLS):
                    moments.append(await _kill(bench.gpu, mode))
                    await asyncio.sleep(KILL_AFTER_SECONDS)
                beats = await end()
            if beats.error:
                raise ProgramError(beats.error)
            took = [beats.next_ms(moment) for moment in moments]
            gaps = [beats.longest_ms(moment, moment + KILL_AFTER_SECONDS) for moment in moments]
            middle = bench.report.add(f"{name}.next", took, "ms", against="goal", goal=1000.0)
            rows.append([mode.name, f"{middle:.1f}", f"{max(took):.1f}", f"{max(gaps):.1f}"])
        except workers.ROW_ERRORS as error:
            rows.append([mode.name, workers.failed(bench.report, name, error), "", ""])


async def _kill(gpu: Gpu, mode: Mode) -> float:
    """Kill a tenant with a full queue, under gpushare while it holds the lease; return the moment."""
    share = gpu.give(request=50) if mode.ours else None
    process = gpu.start(mode, [BUILT / "load", "async", KERNEL_US], share, request=50, limit=100 if mode.ours else 50)
    try:
        await asyncio.to_thread(wait_for, process, "ready")
        now_ms = int(time.monotonic() * 1000)
        assert process.stdin is not None
        process.stdin.write(f"{now_ms} {now_ms} {now_ms + 60_000}\n")
        process.stdin.flush()
        await asyncio.sleep(KILL_AFTER_SECONDS)
        if share is not None:
            await _holding(gpu, share["TEST_POD"])
        process.kill()
        return time.monotonic()
    finally:
        await asyncio.to_thread(finish_all, [process])


async def _holding(gpu: Gpu, pod: str) -> None:
    """Wait until a share holds the lease, which shows in its growing lease time. Raises ProgramError on timeout."""
    had: list[float] = []
    for _ in range(LOOKS):
        had.append(sum(usage.seconds for usage in gpu.arbiter.server.leases.usage() if usage.tenant.pod == pod))
        if len(had) > 1 and had[-1] - had[-2] > LOOK_SECONDS / 2:
            return
        await asyncio.sleep(LOOK_SECONDS)
    raise ProgramError("the share never had the lease")


async def restart_and_resize(bench: Bench) -> None:
    """Restart the arbiter and change requests while two tenants work; both must go on, and follow the new requests."""
    shares = [bench.gpu.give(request=percent) for percent in BEFORE]
    try:
        async with workers.opened(bench.gpu, (OURS, BEFORE[0]), (OURS, BEFORE[1]), shares=shares) as pair:
            await workers.prepare(pair, "train")
            what, longest, parts = "trainings", *await _of_trainings(bench, shares, pair)
    except workers.ROW_ERRORS as error:
        said = workers.failed(bench.report, "restart.trainings", error)
        bench.report.say(f"no trainings; used kernels of a millisecond instead: {said}")
        what, longest, parts = "tenants", *await _of_beats(bench, [bench.gpu.give(request=one) for one in BEFORE])
    for when, part, wanted in zip(("before", "after"), parts, (BEFORE, AFTER), strict=True):
        bench.report.add(f"restart.share.{when}", part, "%", against="request", goal=float(wanted[0]))
    bench.report.add("restart.longest_gap", longest, "ms")
    before, after = (f"{part:.1f}/{100 - part:.1f}" for part in parts)
    bench.report.say(
        f"\ntwo {what}, the arbiter restarts and {BEFORE} becomes {AFTER}: both go on, {before} before and {after}"
        f" after, longest gap {longest:.0f} ms"
    )


async def _disturb(bench: Bench, shares: Sequence[Mapping[str, str]]) -> None:
    """Restart and resize in the middle of a window."""
    await asyncio.sleep(bench.seconds / 4)
    await bench.gpu.arbiter.stop()
    await bench.gpu.arbiter.start()
    await asyncio.sleep(bench.seconds / 4)
    trainings.request(bench.gpu, shares, AFTER)


async def _of_trainings(
    bench: Bench, shares: Sequence[Mapping[str, str]], pair: Sequence[workers.Worker]
) -> tuple[float, list[float]]:
    before = await workers.run(pair, bench.seconds)
    meanwhile, _ = await asyncio.gather(workers.run(pair, bench.seconds), _disturb(bench, shares))
    after = await workers.run(pair, bench.seconds, trainings.SETTLING_SECONDS)
    parts = [100 * first.rate / (first.rate + second.rate) for first, second in (before, after)]
    return max(one.longest_ms for one in meanwhile), parts


async def _of_beats(bench: Bench, shares: Sequence[Mapping[str, str]]) -> tuple[float, list[float]]:
    async with (
        beating(bench.gpu, OURS, share=shares[0]) as end_first,
        beating(bench.gpu, OURS, share=shares[1]) as end_second,
    ):
        await asyncio.sleep(workers.WARM_SECONDS)
        moments = [time.monotonic()]
        await asyncio.sleep(bench.seconds)
        moments.append(time.monotonic())
        await _disturb(bench, shares)
        moments.append(time.monotonic())
        await asyncio.sleep(bench.seconds)
        moments.append(time.monotonic())
        both = await asyncio.gather(end_first(), end_second())
    if error := both[0].error or both[1].error:
        raise ProgramError(error)
    parts = []
    for begin, end in (moments[:2], moments[2:]):
        first, second = (beats.rate(begin, end) for beats in both)
        if first + second == 0:
            raise ProgramError("neither tenant completed a kernel")
        parts.append(100 * first / (first + second))
    return max(beats.longest_ms(*moments[1:3]) for beats in both), parts


async def native_slices(bench: Bench) -> None:
    """Measure the driver's time slices from inside a kernel, next to a busy process."""
    async with beating(bench.gpu, NATIVE):
        said = (await bench.gpu.run(NATIVE, [built("slices"), str(SLICES_MS)])).stdout.strip()
    if not said.startswith("slices "):
        bench.report.say(f"\nthe driver's time slices: {said}")
        return
    count, gap, run, longest = said.split()[1:]
    bench.report.add("slices.away", float(gap), "ms")
    bench.report.add("slices.at_work", float(run), "ms")
    bench.report.say(
        f"\nthe driver's time slices, next to a busy process: {run} ms at work, {gap} ms away (medians of {count},"
        f" longest {longest} ms)"
    )
