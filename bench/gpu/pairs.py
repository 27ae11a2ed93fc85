"""Two language models on one GPU, as others publish it: words a second against one model alone, and true shares.

The table is the one that users compare by: for some numbers of requests, two models of a kind side by side, each with
half of the GPU, and how many words both write in percent of what one alone writes for as many requests; with time
between words. Beside it what nobody else tells: how true 30/70 and 10/90 are.
"""

from __future__ import annotations

from pathlib import Path

from bench.gpu import frameworks
from bench.gpu.bench import Bench
from bench.gpu.modes import NATIVE, OURS, Mode

PROGRAM = Path(__file__).with_name("torch_decode.py")
REQUESTS = (2, 8, 32)
SPLITS = ((50, 50), (30, 70), (10, 90))
SPLIT_REQUESTS = 8


async def pairs(bench: Bench) -> None:
    """The table, natively (time slicing), with ours and with peers."""
    if not await frameworks.present(bench.gpu):
        bench.report.say("\nPairs of models: not measured, this machine's Python has no PyTorch that sees the GPU")
        return
    modes = (NATIVE, OURS, *bench.peers)
    rows = []
    for requests in REQUESTS:
        (alone,) = await _written(bench, NATIVE, [100], requests)
        row = [str(requests), f"{alone['rate']:.0f}", f"{alone['p50_ms']:.1f}"]
        bench.report.add(f"pairs.{requests}.alone", alone["rate"], "words/s")
        for mode in modes:
            both = await _written(bench, mode, [50, 50], requests)
            # Of one model alone with the same requests, as a GPU of its own would give each of them.
            percent = 100 * sum(model["rate"] for model in both) / (2 * alone["rate"])
            slowest = max(model["p99_ms"] for model in both)
            bench.report.add(f"pairs.{requests}.{mode.name}", percent, "%", against="a GPU each", goal=100.0)
            bench.report.add(f"pairs.{requests}.{mode.name}.p99", slowest, "ms")
            row.append(f"{percent:.1f} ({both[0]['p50_ms']:.1f}, {slowest:.1f})")
        rows.append(row)
    head = ["requests", "alone, words/s", "p50 ms", *(f"{mode.name}, % (p50, p99 ms)" for mode in modes)]
    bench.report.table("Two models at 50/50, each in percent of one alone", head, rows)
    rows = []
    for mode in modes:
        row = [mode.name]
        for split in SPLITS:
            small, large = await _written(bench, mode, list(split), SPLIT_REQUESTS)
            share = 100 * small["rate"] / (small["rate"] + large["rate"])
            bench.report.add(f"pairs.split.{split[0]}.{mode.name}", share, "%", against="request", goal=float(split[0]))
            row.append(f"{share:.2f}")
        rows.append(row)
    head = ["", *(f"{request}/{other}, % of the words" for request, other in SPLITS)]
    bench.report.table(f"How true shares are, {SPLIT_REQUESTS} requests each", head, rows)


async def _written(bench: Bench, mode: Mode, percents: list[int], requests: int) -> list[dict[str, float]]:
    """What each of some models wrote that began together, by what they asked for."""
    works = [(PROGRAM, (requests, bench.seconds), percent) for percent in percents]
    return await frameworks.together(bench.gpu, mode, works, bench.seconds)
