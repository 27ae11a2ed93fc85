"""The time in which a lease passes from one share to the next that waits for it, while the agent lists pods.

    python -m bench.handover [--pods 5000] [--seconds 3] [--rounds 8]

Two processes of two shares hand one GPU to each other, some two hundred times a second. The agent lists its node's pods
at the same time, or does not; its arbiter has a separate process, or, as in earlier releases, runs in the agent's loop.
The four cases take turns in one run, round by round; the pods come from a server that prepared them in advance. A list
also takes CPU time from every other process on the machine. So, in turn, another program without a connection to the
arbiter lists the pods. The handover during the agent's list should take as long as during the other program's.

Figures are medians of the rounds, and a ratio compares two cases in one round, because other work may run on the
machine.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bench.handover.agent import ARRANGEMENTS, SHARES
from lab import kubeconfig

LISTS = {"nobody": "nobody", "another": "another program", "agent": "the agent"}
NAMES = {"loop": "in the agent's loop", "process": "in its own process"}


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """The number of handovers in a round, and their median, 99th percentile and maximum in microseconds."""

    count: int
    times_us: tuple[float, float, float]

    @classmethod
    def from_times(cls, sizes: Sequence[float]) -> Round:
        cuts = statistics.quantiles(sizes, n=100, method="inclusive")
        return cls(len(sizes), (cuts[49], cuts[98], max(sizes)))


class Program:
    """A program of this bench that answers each line with one."""

    def __init__(self, *words: str, pod: str = "") -> None:
        stands_for = {"TEST_POD": pod, "TEST_CONTAINER": "main"} if pod else {}
        self.process = subprocess.Popen(
            (sys.executable, "-m", *words),
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **stands_for},
        )

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.process.args!r} ended: {self.process.wait()}"
        return line

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Node:
    """An agent with its arbiter in this arrangement, and the processes of two shares."""

    def __init__(self, arrangement: str, directory: Path, credentials: Path) -> None:
        directory.mkdir()
        self.agent = Program("bench.handover.agent", arrangement, str(directory), str(credentials))
        self.agent.line()
        path = str(directory / "arbiter" / "arbiter.sock")
        self.shares = [Program("bench.handover.share", path, pod=name) for name in SHARES]
        for share in self.shares:
            share.line()

    def handovers_us(self, seconds: float) -> list[float]:
        """Return the microseconds from the end of each turn to the start of the next one if another share has it."""
        for share in self.shares:
            share.say(str(seconds))
        turns = [(*turn, number) for number, share in enumerate(self.shares) for turn in json.loads(share.line())]
        pairs = itertools.pairwise(sorted(turns))
        return [(after[0] - before[1]) / 1000 for before, after in pairs if before[2] != after[2]]

    def turn_agent(self) -> None:
        """Toggle the agent between listing pods and doing nothing."""
        self.agent.say("")
        self.agent.line()

    def end(self) -> None:
        for share in (*self.shares, self.agent):
            share.end()


@contextlib.contextmanager
def nodes(pods: int) -> Iterator[dict[str, Node]]:
    """Run one node of each arrangement."""
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch, contextlib.ExitStack() as stack:
        directory = Path(scratch)
        server = Program("bench.handover.pods", str(pods))
        stack.callback(server.end)
        (directory / "ca.crt").write_bytes(b"")
        credentials = directory / "kubeconfig"
        url = f"http://127.0.0.1:{int(server.line())}"
        text = kubeconfig.with_token(url, directory / "ca.crt", "token", "default")
        kubeconfig.write(credentials, text.replace("certificate-authority-data: ''", "insecure-skip-tls-verify: true"))
        made = {name: Node(name, directory / name, credentials) for name in ARRANGEMENTS}
        for node in made.values():
            stack.callback(node.end)
        yield made


@contextlib.contextmanager
def listed(by: Iterable[Node]) -> Iterator[None]:
    """Let the agents of these nodes list pods while the context lasts."""
    listing = list(by)
    for node in listing:
        node.turn_agent()
    yield
    for node in listing:
        node.turn_agent()


def main() -> None:
    """Measure, and print a table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=5000, help="in a list (%(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each in a round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=8, help="(%(default)s)")
    options = parser.parse_args()
    cases = list(itertools.product(ARRANGEMENTS, LISTS))
    rounds: list[dict[tuple[str, str], Round]] = []
    with nodes(options.pods) as made:
        for _ in range(options.rounds):
            rounds.append({})
            for name, who in cases:
                others = (arrangement for arrangement in ARRANGEMENTS if arrangement != name)
                listing = {"nobody": (), "agent": (name,), "another": others}[who]
                with listed(made[arrangement] for arrangement in listing):
                    rounds[-1][name, who] = Round.from_times(made[name].handovers_us(options.seconds))
    print(f"{'arbiter':<22}{'who lists':<18}{'handovers':>10}{'p50':>12}{'p99':>12}{'most':>12}{'p99, ratio':>12}")
    figures = []
    for name, who in cases:
        measured = [cells[name, who] for cells in rounds]
        p50, p99, most = (
            statistics.median(values) for values in zip(*(cell.times_us for cell in measured), strict=True)
        )
        ratio = statistics.median(cells[name, who].times_us[1] / cells[name, "another"].times_us[1] for cells in rounds)
        times = "".join(f"{time_us:>9.0f} us" for time_us in (p50, p99, most))
        print(f"{NAMES[name]:<22}{LISTS[who]:<18}{sum(cell.count for cell in measured):>10}{times}{ratio:>11.2f}x")
        figure = {"figure": f"arbiter.handover.{name}.{who}.p99", "value": round(p99), "unit": "us"}
        figures.append({**figure, "against": "another program lists", "ratio": round(ratio, 2)})
    print()
    for line in figures:
        print(json.dumps(line))


if __name__ == "__main__":
    main()
