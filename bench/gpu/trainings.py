"""Measure PyTorch's steps in a share, and the shares of two trainings by completed work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.gpu import workers
from bench.gpu.bench import Bench
from bench.gpu.modes import NATIVE, OURS, Mode
from bench.gpu.report import spread
from bench.gpu.tenants import Gpu
from bench.gpu.workers import Measured, Worker

WORKLOADS = ("train", "infer", "matmul", "convolve", "attention", "graph")
SPLITS = ((50, 50), (30, 70), (10, 90))
PEER_SPLIT = (30, 70)
MIN_SECONDS = 0.5  # for each round
SETTLING_SECONDS = 0.8  # after a request has changed
COST_HEAD = ["", "", "steps/s", "lost, %", "p99 ms", "CPU, % of a core"]
SPLIT_HEAD = ["requests", "", "first of two, %", "sum, % of one alone", "p99 ms", "longest ms"]


async def torch_costs(bench: Bench) -> None:
    """Compare steps a second of one program alone on the GPU, native and ours in alternating rounds."""
    native: dict[str, list[float]] = {}
    try:
        async with workers.opened(bench.gpu, (NATIVE, 100), (OURS, 100)) as both:
            await _costs(bench, list(zip((NATIVE, OURS), both, strict=True)), native)
    except workers.ROW_ERRORS as error:
        bench.report.say(f"\nPyTorch: not measured: {workers.failed(bench.report, 'torch', error)}")
        return
    for peer in bench.peers:
        try:
            async with workers.opened(bench.gpu, (peer, 100)) as (worker,):
                await _costs(bench, [(peer, worker)], native)
        except workers.ROW_ERRORS as error:
            bench.report.say(f"\nPyTorch, {peer.name}: {workers.failed(bench.report, f'torch.{peer.name}', error)}")


async def _costs(bench: Bench, modes: Sequence[tuple[Mode, Worker]], native: dict[str, list[float]]) -> None:
    rows: list[list[str]] = []
    bench.report.table(f"PyTorch, steps a second, {', '.join(mode.name for mode, _ in modes)}", COST_HEAD, rows)
    for workload in WORKLOADS:
        done: dict[str, list[Measured]] = {mode.name: [] for mode, _ in modes}
        name = ""
        try:
            for mode, worker in modes:
                name = mode.name
                await worker.prepare(workload)
            rounds = max(1, min(bench.rounds, int(bench.seconds / MIN_SECONDS)))
            for _ in range(rounds):
                for mode, worker in modes:
                    name = mode.name
                    done[name] += await workers.run([worker], bench.seconds / rounds, warm=0.05)
        except workers.ROW_ERRORS as error:
            rows.append([workload, name, workers.failed(bench.report, f"torch.{workload}.{name}", error), *[""] * 3])
            continue
        for name, measured in done.items():
            rates = [one.rate for one in measured]
            bench.report.add(f"torch.{workload}.{name}", rates, "steps/s")
            native.setdefault(workload, rates)
            lost = [100 - 100 * mine / bare for mine, bare in zip(rates, native[workload], strict=False)]
            if name != NATIVE.name:
                bench.report.add(f"torch.{workload}.{name}.lost", lost, "%", against="goal", goal=1.0)
            used = 100 * sum(one.cpu_seconds for one in measured) / sum(one.seconds for one in measured)
            rare = max(one.p99_ms for one in measured)
            rows.append([workload, name, spread(rates), spread(lost, 2), f"{rare:.2f}", f"{used:.0f}"])


async def torch_splits(bench: Bench) -> None:
    """Compare two busy trainings' steps with requests and native time slicing; capture graphs next to one."""
    rows: list[list[str]] = []
    share = bench.gpu.give(request=SPLITS[0][0]), bench.gpu.give(request=SPLITS[0][1])
    try:
        async with workers.opened(bench.gpu, (NATIVE, 50), (NATIVE, 50)) as native:
            await workers.prepare(native, "train")
            (one,) = await workers.run(native[:1], bench.seconds)
            alone = bench.report.add("torch.split.alone", one.rate, "steps/s")
            await _split(bench, NATIVE, SPLITS[0], native, alone, rows)
            await _captures(bench, NATIVE, native)
        async with workers.opened(bench.gpu, (OURS, 50), (OURS, 50), shares=share) as ours:
            await workers.prepare(ours, "train")
            for split in SPLITS:
                request(bench.gpu, share, split)
                await _split(bench, OURS, split, ours, alone, rows)
            request(bench.gpu, share, SPLITS[0])
            await _captures(bench, OURS, ours)
    except workers.ROW_ERRORS as error:
        bench.report.say(f"\nTwo trainings: not measured: {workers.failed(bench.report, 'torch.split', error)}")
        return
    finally:
        if rows:
            bench.report.table("Two busy trainings, by steps", SPLIT_HEAD, rows)
    rows = []
    for peer in bench.peers:
        try:
            async with workers.opened(bench.gpu, *((peer, percent) for percent in PEER_SPLIT)) as pair:
                await workers.prepare(pair, "train")
                await _split(bench, peer, PEER_SPLIT, pair, alone, rows)
        except workers.ROW_ERRORS as error:
            rows.append(["", peer.name, workers.failed(bench.report, f"torch.split.{peer.name}", error), *[""] * 3])
    if rows:
        bench.report.table("Two busy trainings, peers", SPLIT_HEAD, rows)


def request(gpu: Gpu, shares: Sequence[Mapping[str, str]], percents: Sequence[int]) -> None:
    """Change the requests of shares in use, as an edited annotation does."""
    for share, percent in zip(shares, percents, strict=True):
        gpu.arbiter.change(share["TEST_POD"], request_percent=percent)


async def _split(
    bench: Bench, mode: Mode, split: tuple[int, int], pair: list[Worker], alone: float, rows: list[list[str]]
) -> None:
    both = await workers.run(pair, bench.seconds, SETTLING_SECONDS)
    total = sum(one.rate for one in both)
    share, name = 100 * both[0].rate / total, f"torch.split.{split[0]}.{mode.name}"
    bench.report.add(name, share, "%", against="request", goal=float(split[0]))
    bench.report.add(f"{name}.total", 100 * total / alone, "%", against="native alone", goal=100.0)
    rare, longest = (max(getattr(one, key) for one in both) for key in ("p99_ms", "longest_ms"))
    shown = [f"{share:.2f}", f"{100 * total / alone:.2f}", f"{rare:.1f}", f"{longest:.1f}"]
    rows.append([f"{split[0]}/{split[1]}", mode.name, *shown])


async def _captures(bench: Bench, mode: Mode, pair: list[Worker]) -> None:
    """Capture graphs again and again next to a training: no capture may be invalidated."""
    await pair[1].prepare("capture")
    captures = (await workers.run(pair, bench.seconds))[1]
    await pair[1].prepare("train")
    bench.report.add(f"torch.captures.{mode.name}.wrong", captures.failures, "", against="goal", goal=0.0)
    wrong = f": {captures.failure}" if captures.failures else ""
    text = f"{captures.rate:.0f} graphs/s captured and replayed next to a training, {captures.failures} wrong{wrong}"
    bench.report.say(f"{mode.name}: {text}")
