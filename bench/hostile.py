"""The cost of the attacks of tests/hostile/attacks.py for an honest pod on the same GPU, by user: root and nobody.

Runs on a node of the lab, with simulated GPUs. The neighbour has 40 % of a GPU and 4 GiB, and runs kernels of a
millisecond one after the other; the attacker has 50 % and 2 GiB. Each attack is compared, in the same run, with the
cost of the same pod when it is honest and busy. Kubernetes divides the CPU: the attacker gets half a core.

Run: `python bench/hostile.py [--seconds S] [--only NAME,NAME] [--lab DIRECTORY]`. Prints a table for each user, then
one JSON object a figure; exits with 1 if a protection failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tabulate

from lab import access, cluster, gpushare, lab_layout
from tests.e2e.observation import Observer
from tests.hostile.attacks import ATTACKS, BASELINES
from tests.hostile.ground import USERS, Ground

REQUEST, MEMORY = 0.5, "2Gi"
TOLD_SECONDS = 20.0
HEAD = (
    "attack",
    "kernels/s",
    "of honest",
    "p99 ms",
    "p99 of honest",
    "max ms",
    "newcomers",
    "slowest s",
    "memory",
    "told after s",
    "won",
)


@dataclass(frozen=True)
class Window:
    """One attack, from just after its start to just before its end, by the machine's clock."""

    name: str
    begin: float
    end: float
    told_after: float | None
    won: tuple[str, ...]


def attack(ground: Ground, names: list[str], label: str, seconds: float) -> Window:
    known = {**BASELINES, **ATTACKS}
    expected = {known[name].told for name in names} - {""}
    processes = known[names[0]].processes if len(names) == 1 else 1
    told_after = None
    with ground.attacking_with(["attacker"], names, processes) as attacking:
        begin = time.monotonic()
        while expected and told_after is None and time.monotonic() < begin + TOLD_SECONDS:
            if expected <= ground.told("attacker"):
                told_after = time.monotonic() - begin
            time.sleep(0.5)
        time.sleep(max(0.0, begin + seconds - time.monotonic()))
        end = time.monotonic()
    return Window(label, begin, end, told_after, tuple(sorted(set(attacking.won))))


@contextlib.contextmanager
def lab(directory: Path | None) -> Iterator[access.Access]:
    with contextlib.ExitStack() as stack:
        is_ours = directory is None
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp"))) / "lab"
            stack.callback(cluster.down, directory)
        made = cluster.up(directory, node_count=1, owner=os.getpid() if is_ours else None)
        gpushare.install(lab_layout.load(directory), made)
        yield made


def rows(ground: Ground, windows: list[Window]) -> list[list[object]]:
    said = ground.said()
    rates = {
        window: len(said.delays(window.begin, window.end)) / (window.end - window.begin)
        for window in windows
        if window.end > window.begin
    }
    sorted_us = {window: said.delays(window.begin, window.end) or [0] for window in rates}
    p99_ms = {window: delays[len(delays) * 99 // 100] / 1e3 for window, delays in sorted_us.items()}
    honest, honest_p99_ms = (
        statistics.median(figure for window, figure in figures.items() if window.name == "honest")
        for figures in (rates, p99_ms)
    )
    table = []
    for window, rate in rates.items():
        newcomers = said.newcomers(window.begin, window.end)
        exact = all(newcomer.bytes == said.total_bytes for newcomer in newcomers)
        fewest = min((newcomer.bytes or 0 for newcomer in newcomers), default=0)
        table.append(
            [
                window.name,
                round(rate),
                f"{rate / honest:.2f}",
                round(p99_ms[window], 1),
                f"{p99_ms[window] / honest_p99_ms:.2f}",
                round(sorted_us[window][-1] / 1e3, 1),
                len(newcomers),
                round(max((newcomer.ended - newcomer.began for newcomer in newcomers), default=0), 2),
                "exact" if exact else f"{fewest} of {said.total_bytes}",
                round(window.told_after, 1) if window.told_after is not None else "",
                ", ".join(window.won),
            ]
        )
    return table


def measured(user: Observer, where: lab_layout.Layout, who: str, names: list[str], seconds: float) -> bool:
    """Print the table of a user, and return whether every protection held."""
    ground = Ground(user, where)
    ground.neighbour(request=0.4, memory="4Gi")
    ground.attacker("attacker", who, request=REQUEST, memory=MEMORY)
    ground.wait("attacker")
    before = ground.agent()
    windows = [attack(ground, ["honest"], "honest", seconds), attack(ground, ["spins"], "spins", seconds)]
    for count, name in enumerate(names, start=1):
        windows.append(attack(ground, [name], name, seconds))
        if count == len(names) // 2 or count == len(names):
            windows.append(attack(ground, ["honest"], "honest", seconds))
    begin = time.monotonic()
    ground.restart("attacker")
    time.sleep(max(0.0, begin + seconds - time.monotonic()))
    windows.append(Window("restart", begin, time.monotonic(), None, ()))
    _print(who, rows(ground, windows))
    together = [name for name in names if not ATTACKS[name].past]
    with ground.attacking_with(["attacker"], together) as attacking:
        begin = time.monotonic()
        status_seconds, third_seconds = ground.status_seconds(), ground.third(request=0.1)
        end = time.monotonic()
    windows.append(Window("together", begin, end, None, tuple(sorted(set(attacking.won)))))
    table = rows(ground, windows)
    after = ground.agent()
    _print(who, table[-1:])
    print(
        f"together: GPUNode's status written twice in {status_seconds:.1f} s, a third pod placed, started and filled "
        f"in {third_seconds:.1f} s; the agent: {after.restarts - before.restarts} restarts, "
        f"{after.now_bytes >> 20} MiB ({before.now_bytes >> 20} before, {after.most_bytes >> 20} at most)\n"
    )
    for row in table:
        print(json.dumps({"figure": f"hostile.{who}.{row[0]}.throughput", "value": row[1], "unit": "1/s"}))
        p99 = {"value": row[3], "unit": "ms", "against": "honest", "ratio": row[4]}
        print(json.dumps({"figure": f"hostile.{who}.{row[0]}.p99", **p99}))
    held = [row for row in table if row[0] not in {name for name in ATTACKS if ATTACKS[name].past}]
    exact = all(row[8] == "exact" for row in held)
    return exact and not any(row[10] for row in table) and after.restarts == before.restarts


def _print(who: str, table: list[list[object]]) -> None:
    print(f"\nas {who}:\n\n{tabulate.tabulate(table, HEAD, tablefmt='github')}\n", flush=True)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--seconds", type=float, default=6.0, help="for each attack (%(default)s)")
    options.add_argument("--only", default=",".join(ATTACKS), help="names of attacks")
    options.add_argument("--lab", type=Path, help="an existing lab (default: a new one)")
    options.add_argument("--users", default=",".join(USERS), help="(%(default)s)")
    arguments = options.parse_args()
    fine = True
    with lab(arguments.lab) as administrator:
        where = lab_layout.load(administrator.kubeconfig.parents[1])
        for who in arguments.users.split(","):
            with administrator.namespace("hostile") as namespace:
                user = Observer(administrator, namespace)
                fine = measured(user, where, who, arguments.only.split(","), arguments.seconds) and fine
                user.delete("pods", "--all")
                user.ledger_is_empty()
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
