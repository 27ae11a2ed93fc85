"""The simulated GPU's time, compared with published figures of real ones: two models on a GPU, by time slices and MPS.

Published: NVIDIA Dynamo, examples/gpu-sharing, November 2026: two vLLM with Qwen3-4B on an A100; the tokens a second of
both in percent of one model alone with the same requests, and the time between two tokens.

Simulated: a model is a process that runs one step after another. A step is a kernel on KERNEL_PERCENT of the GPU; it
takes STEP_MS without requests and REQUEST_PART of that more for each. simgpu/README.md has the model of the GPU and
the reasons for these figures. They and SWITCH were fitted to all figures of the table, STEP_MS to the time between
tokens of one model alone, so the errors show how well so few parameters describe the GPU, not how well they predict.

Prints tables, then one JSON object a line per figure. Run: `python bench/simulated_time.py [--seconds N] [--results
DIRECTORY]`; with a second a case it takes half a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launches import node as shares
from programs import decoding
from programs.decoding import BUILT, REQUESTS, ROOT, SLICED, kernel, step_ns

from tests.deviceplugin import arbiter_node

PROGRAM = "bench.programs.model"

MANY = 1_000_000
TOKEN_MS_AT_8 = {"alone": 11.0, "time slices": 21.1, "MPS, 50 % each": 15.4}


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value, and the value that it is compared with."""

    name: str
    value: float
    unit: str
    against: str
    other: float

    def line(self) -> str:
        """Return the figure as JSON."""
        ratio = round(self.value / self.other, 3) if self.other else None
        document = {"figure": f"simulated.{self.name}", "value": round(self.value, 3), "unit": self.unit}
        return json.dumps({**document, "against": self.against, "ratio": ratio})


@contextlib.contextmanager
def node() -> Iterator[Path]:
    """Yield a directory with GPUs and an MPS pipe directory."""
    subprocess.run(["make", "-s", "-C", ROOT / "simgpu"], check=True)
    with tempfile.TemporaryDirectory() as directory:
        gpus = decoding.create(Path(directory))
        (Path(directory) / "pipe").mkdir()
        mps = {
            "SIMGPU_DIR": str(gpus),
            "CUDA_MPS_PIPE_DIRECTORY": f"{directory}/pipe",
            "CUDA_MPS_LOG_DIRECTORY": directory,
        }
        control = BUILT / "nvidia-cuda-mps-control"
        subprocess.run([control, "-d"], env=mps, check=True)
        try:
            yield Path(directory)
        finally:
            subprocess.run([control], env=mps, input="quit\n", text=True, check=True)


def rates(
    directory: Path, kernel: str, environments: Sequence[Mapping[str, str]], seconds: float, most: int = MANY
) -> list[float]:
    """Return the steps a second of concurrent processes; with `most`, each has its own GPU and waits for each step."""
    common = {
        "PATH": os.environ["PATH"],
        "SIMGPU_DIR": str(directory / "gpus"),
        "LD_LIBRARY_PATH": str(BUILT),
        "PYTHONPATH": str(ROOT),
        "CUDA_MPS_PIPE_DIRECTORY": str(directory / "none"),
    }
    with contextlib.ExitStack() as stack:
        processes = []
        for number, environment in enumerate(environments):
            meets = most < MANY
            process = subprocess.Popen(
                [sys.executable, "-m", PROGRAM, str(number if meets else 0), kernel, "0" if meets else "4", str(most)],
                env={**common, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(f"{seconds}\n")
            process.stdin.flush()
        # Wait until they have exited: killed MPS clients with outstanding work would wedge their server.
        return [float(process.communicate()[0]) for process in processes]


def pairs(directory: Path, seconds: float) -> tuple[list[str], list[Figure]]:
    """Measure two models that share the requests of one."""
    half = {"CUDA_MPS_PIPE_DIRECTORY": str(directory / "pipe"), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}
    ways: Mapping[str, tuple[Mapping[str, str], Sequence[float]]] = {
        "time slices": ({}, SLICED),
        "MPS, 50 % each": (half, decoding.MPS),
    }
    lines, figures = ["| requests | " + " | ".join(f"{way}: published | simulated | error" for way in ways) + " |"], []
    lines.append("|---|" + "---|---|---|" * len(ways))
    token_ms: dict[str, float] = {}
    errors: list[float] = []
    for number, requests in enumerate(REQUESTS):
        (alone,) = rates(directory, kernel(requests), [{}], seconds)
        cells = []
        for way, (environment, published) in ways.items():
            pair = rates(directory, kernel(requests / 2), [environment] * 2, seconds)
            percent = 100 * (sum(pair) * requests / 2) / (alone * requests)
            error = percent - published[number]
            cells.append(f"{published[number]:.1f} | {percent:.1f} | {error:+.1f}")
            figures.append(
                Figure(
                    f"{'slices' if environment == {} else 'mps'}.{requests}",
                    percent,
                    "%",
                    "published",
                    published[number],
                )
            )
            errors.append(abs(error))
            if requests == 8:
                token_ms |= {"alone": 1000 / alone, way: 2000 / sum(pair)}
        lines.append(f"| {requests} | " + " | ".join(cells) + " |")
    lines += ["", "| milliseconds between tokens at 8 requests | published | simulated |", "|---|---|---|"]
    lines += [f"| {way} | {TOKEN_MS_AT_8[way]:.1f} | {simulated_ms:.1f} |" for way, simulated_ms in token_ms.items()]
    figures.append(Figure("worst_error", max(errors), "points", "goal", 5))
    mean = sum(errors) / len(errors)
    lines += [
        "",
        f"The figures are {mean:.1f} points off on average, {max(errors):.1f} at worst.",
    ]
    return lines, figures


def leases(directory: Path, seconds: float) -> tuple[list[str], list[Figure]]:
    """Measure the pairs as shares of 50 % each, with gpushare's library and arbiter. No published figures exist."""
    percents = asyncio.run(_leased(directory, seconds))
    lines = ["", "| requests | leases: simulated |", "|---|---|"]
    lines += [f"| {requests} | {percent:.1f} |" for requests, percent in zip(REQUESTS, percents, strict=True)]
    figures = [
        Figure(f"leases.{requests}", percent, "%", "published time slices", sliced)
        for requests, percent, sliced in zip(REQUESTS, percents, SLICED, strict=True)
    ]
    return lines, figures


async def _leased(directory: Path, seconds: float) -> list[float]:
    percents = []
    shares.build()
    async with arbiter_node.opened(directory) as arbiter:
        shared = shares.Node(arbiter, directory / "gpus")
        for requests in REQUESTS:
            command = [sys.executable, "-m", PROGRAM, "0", kernel(requests / 2), "4", str(MANY)]
            pair = [shared.box.start(command, shared.give(50, 100)) for _ in range(2)]
            try:
                for process in pair:
                    await asyncio.to_thread(shares.until_ready, process)
                asked = [asyncio.to_thread(process.communicate, f"{seconds}\n") for process in pair]
                done = [float(output) for output, _ in await asyncio.gather(*asked)]
            finally:
                for process in pair:
                    process.kill()
            percents.append(100 * sum(done) / 2 * step_ns(requests) / 1e9)
    return percents


def meetings(directory: Path) -> tuple[list[str], list[Figure]]:
    """Measure the delay until the kernels of two processes on two GPUs have met."""
    lost_us = [1e6 / rate - 1000 for rate in rates(directory, "meet2_bench_1000us", [{}, {}], 60, most=500)]
    mean_us = sum(lost_us) / len(lost_us)
    line = f"Kernels of 1 ms that meet in two processes, one after another: {mean_us:.0f} us more each."
    return ["", line], [Figure("meeting.added", mean_us, "us", "goal", 500)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each case is counted (%(default)s)")
    parser.add_argument("--results", type=Path, help="where to write a page, such as bench/results")
    arguments = parser.parse_args()
    with node() as directory:
        lines, figures = pairs(directory, arguments.seconds)
        for more, found in (leases(directory, arguments.seconds), meetings(directory)):
            lines, figures = lines + more, figures + found
    print("\n".join(lines), end="\n\n")
    for figure in figures:
        print(figure.line())
    if arguments.results:
        day = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
        machine = f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}"
        command = f"`python bench/simulated_time.py --seconds {arguments.seconds:g}`"
        head = [f"# The simulated GPU's time, {day}", "", f"{command}: {machine}."]
        text = (__doc__ or "").split("\n\n")[1:3]
        page = [*head, "", *"\n\n".join(text).splitlines(), "", *lines, ""]
        (arguments.results / f"{day}-simulated-time.md").write_text("\n".join(page))


if __name__ == "__main__":
    main()
