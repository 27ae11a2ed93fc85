"""Run two language models on one GPU, and compare their tokens per second with one model alone.

For several numbers of requests, two equal models run side by side, each with half of the GPU. The table has the tokens
of both in percent of one model alone with as many requests, a figure that other projects publish too, and the time
between tokens, of the slower model. Weights are random. Two workers serve all rows of a mode.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.gpu import workers
from bench.gpu.bench import Bench
from bench.gpu.modes import NATIVE, OURS, Mode
from bench.gpu.workers import Measured, Worker

REQUESTS = (2, 8, 32)
GENERATE_REQUESTS = 8
HALVES = (50, 50)
HEAD = ["requests", "", "tokens/s", "% of one alone", "to native", "first of two, %", "p50 ms", "p99 ms", "longest ms"]


async def decoders(bench: Bench) -> None:
    """Measure the handmade decoder with 2, 8 and 32 requests."""
    await _pairs(bench, "decoders", "decode", REQUESTS)


async def transformers(bench: Bench) -> None:
    """Measure a Llama of the transformers library with its `generate`."""
    await _pairs(bench, "transformers", "generate", (GENERATE_REQUESTS,))


async def _pairs(bench: Bench, name: str, workload: str, requests: tuple[int, ...]) -> None:
    """Alternate native and ours, so that both compare; measure each peer afterwards."""
    pairs = _Pairs(bench, name, workload, requests)
    try:
        async with workers.opened(bench.gpu, *_halves(NATIVE), *_halves(OURS)) as four:
            await pairs.measure([(NATIVE, four[:2]), (OURS, four[2:])])
    except workers.ROW_ERRORS as error:
        bench.report.say(f"\n{name}: PyTorch is not measured: {workers.failed(bench.report, name, error)}")
        return
    finally:
        pairs.show("beside each other")
    for peer in bench.peers:
        try:
            async with workers.opened(bench.gpu, *_halves(peer)) as pair:
                await pairs.measure([(peer, pair)])
        except workers.ROW_ERRORS as error:
            pairs.rows.append(["", peer.name, workers.failed(bench.report, f"{name}.{peer.name}", error), *[""] * 6])
        finally:
            pairs.show(peer.name)


def _halves(mode: Mode) -> list[tuple[Mode, int]]:
    return [(mode, percent) for percent in HALVES]


class _Pairs:
    """The rows of a table, and the rates they are compared with: one model alone, and two natively."""

    def __init__(self, bench: Bench, name: str, workload: str, requests: tuple[int, ...]) -> None:
        self.rows: list[list[str]] = []
        self._bench, self._name, self._workload, self._requests = bench, name, workload, requests
        self._alone: dict[int, float] = {}
        self._native: dict[int, float] = {}

    async def measure(self, pairs: Sequence[tuple[Mode, list[Worker]]]) -> None:
        """Measure each number of requests in each mode. After a failure, go on with the next number."""
        for requests in self._requests:
            for mode, pair in pairs:
                try:
                    await workers.prepare(pair, self._workload, requests)
                    if mode in (NATIVE, OURS):
                        self._add_alone(requests, mode, (await workers.run(pair[:1], self._bench.seconds))[0])
                    self._add(requests, mode, await workers.run(pair, self._bench.seconds))
                    await workers.drop(pair)
                except workers.ROW_ERRORS as error:
                    text = workers.failed(self._bench.report, f"{self._name}.{requests}.{mode.name}", error)
                    self.rows.append([str(requests), mode.name, text, *[""] * 6])

    def _add_alone(self, requests: int, mode: Mode, one: Measured) -> None:
        report, name = self._bench.report, f"{self._name}.{requests}.alone.{mode.name}"
        if mode is NATIVE:
            self._alone[requests] = one.rate
        percent = 100 * report.add(name, one.rate, "tokens/s") / self._alone[requests]
        times = [f"{ms:.2f}" for ms in (one.p50_ms, one.p99_ms, one.longest_ms)]
        self.rows.append([str(requests), f"one, {mode.name}", f"{one.rate:.0f}", f"{percent:.1f}", "", "", *times])

    def _add(self, requests: int, mode: Mode, both: list[Measured]) -> None:
        """Add two models' row: percent of one model alone with the same requests (two GPUs would give 200)."""
        report, name = self._bench.report, f"{self._name}.{requests}.{mode.name}"
        total = sum(one.rate for one in both)
        if mode is NATIVE:
            self._native[requests] = total
        percent, ratio = 100 * total / self._alone[requests], total / self._native[requests]
        p50, p99, longest = (max(getattr(one, key) for one in both) for key in ("p50_ms", "p99_ms", "longest_ms"))
        first = 100 * both[0].rate / total
        report.add(name, percent, "%", against="one alone", goal=100.0)
        report.add(f"{name}.to_native", ratio, "x", against="native", goal=1.0)
        report.add(f"{name}.share", first, "%", against="request", goal=50.0)
        report.add(f"{name}.p50", p50, "ms")
        report.add(f"{name}.p99", p99, "ms")
        times = [f"{ms:.2f}" for ms in (p50, p99, longest)]
        numbers = [f"{total:.0f}", f"{percent:.1f}", f"{ratio:.3f}", f"{first:.1f}"]
        self.rows.append([str(requests), f"two, {mode.name}", *numbers, *times])

    def show(self, what: str) -> None:
        """Print the rows added since the last call."""
        if self.rows:
            title = f"Language models, {self._workload}, two at {HALVES[0]}/{HALVES[1]}: {what}"
            self._bench.report.table(title, HEAD, self.rows)
        self.rows = []
