"""A large cluster on a real API server: what the webhook takes of memory and time where others have very many pods.

1,000 nodes of 8 GPUs and 20,000 ordinary pods by default, each of the size that pods have (5.7 KB), made by hand: there
is no kubelet and no scheduler. A replica starts among them; then the API server is restarted under it, so that all is
listed anew; then pods with shares come in bursts. Memory is the replica's resident set (VmHWM since the phase began,
VmRSS at its end); a stall is the longest that one of very many calls to `/healthz` took meanwhile, which a busy machine
stretches. The bursts are those of `admission.py`: their rate is compared with that of a webhook that answers a
constant, in the same run and the same cluster; with `--own-core` either webhook has the last core for itself, and all
else the others. Prints a table, then one JSON object a line per figure.

Run: python bench/scale.py [--nodes 1000] [--pods 20000] [--burst 1000] [--rounds 2] [--own-core]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import admission
from burst import calls, made, webhooks

from lab import build, cluster, component, control_plane, process

MIB = 1 << 20
PROBE_SECONDS = 0.01
QUIET_SECONDS = 15.0
PATIENCE_SECONDS = 180.0
STOP_SECONDS = 30.0
MOST_MIB = {20_000: 512, 100_000: 1024}  # by pods; of none more than this is asked
MOST_STALL_MS, MOST_READY_SECONDS = 100.0, 30.0
LEAST_PART_OF_CONSTANT = {True: 0.7, False: 0.5}  # with a core of its own, or not
KINDS = ("floor", admission.CONSTANT, "1 replica", "2 replicas")


@dataclass(frozen=True)
class Phase:
    """What a replica took, until it was ready and after that."""

    ready_seconds: float
    peak_bytes: int
    left_bytes: int
    stall_seconds: float


class Stalls:
    """While it is entered: asks a process again and again, and keeps the longest that an answer took."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.longest_seconds = 0.0

    def __enter__(self) -> Stalls:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(PROBE_SECONDS):
            began = time.monotonic()
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self._port}/healthz", timeout=60).close()
                self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)


class Scale(admission.Bench):
    """Phases and bursts, with all that there is besides."""

    def fill(self, namespace: str) -> float:
        """Seconds that the ordinary pods took to create."""
        wanted = list(made.ordinary(namespace, self.options.ordinary))
        seconds, answers = calls.burst(self.server, wanted, at_once=64, processes=2)
        calls.all_well(answers)
        return seconds

    def phases(self) -> dict[str, Phase]:
        """A replica that starts, and under which the API server is restarted."""
        self.put_in_the_way()
        with webhooks.running(1, self.scratch / "phases", self.kubeconfig) as (replicas, _):
            replica = replicas[0]
            with Stalls(replica.probe_port) as stalls:
                time.sleep(QUIET_SECONDS)
            found = {"start": _phase(replica, replica.ready_seconds, stalls)}
            Path(f"/proc/{replica.process.pid}/clear_refs").write_text("5")  # the peak is counted anew
            with Stalls(replica.probe_port) as stalls:
                began = time.monotonic()
                self._restart_api_server()
                webhooks.until(replica.ready, "the replica does not get ready again", seconds=PATIENCE_SECONDS)
                seconds = time.monotonic() - began
                time.sleep(QUIET_SECONDS)
            found["restart of the API server"] = _phase(replica, seconds, stalls)
        return found

    def _restart_api_server(self) -> None:
        process.stop([("kube-apiserver", STOP_SECONDS)], self.lab.processes)
        started = control_plane.api_server(self.lab, build.ensure())
        component.start([started], self.lab)
        component.wait([started], self.lab, PATIENCE_SECONDS)

    def asked(self, processes: Iterable[int]) -> None:
        """Before a burst: who is asked by the API server has the last core for itself, if that is wanted."""
        if not self.options.own_core:
            return
        *others, own = sorted(os.sched_getaffinity(1))
        control = (process.pid_of(name, self.lab.processes) for name in ("kube-apiserver", "etcd"))
        for pid in (os.getpid(), *(pid for pid in control if pid is not None)):
            _pin(pid, others)
        for pid in processes:
            _pin(pid, [own])


def _pin(pid: int, cores: Sequence[int]) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), cores)


def _phase(replica: webhooks.Replica, ready_seconds: float, stalls: Stalls) -> Phase:
    status = Path(f"/proc/{replica.process.pid}/status").read_text()
    peak, left = (int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) << 10 for name in ("VmHWM", "VmRSS"))  # type: ignore[index]
    return Phase(ready_seconds, peak, left, stalls.longest_seconds)


def _print_phases(phases: dict[str, Phase], pods: int) -> None:
    goal = next((mib for most, mib in sorted(MOST_MIB.items()) if pods <= most), None)
    print(f"\n{'':<28}{'ready s':>9}{'peak MiB':>10}{'left MiB':>10}{'stall ms':>10}")
    for name, one in phases.items():
        peak, left = one.peak_bytes / MIB, one.left_bytes / MIB
        print(f"{name:<28}{one.ready_seconds:>9.1f}{peak:>10.0f}{left:>10.0f}{1000 * one.stall_seconds:>10.0f}")
    for name, one in phases.items():
        for figure, value, unit, most in (
            ("ready", one.ready_seconds, "s", MOST_READY_SECONDS),
            ("peak", one.peak_bytes / MIB, "MiB", goal),
            ("left", one.left_bytes / MIB, "MiB", goal),
            ("stall", 1000 * one.stall_seconds, "ms", MOST_STALL_MS),
        ):
            ratio = round(value / most, 2) if most else None
            told = {"figure": f"scale.{name.replace(' ', '-')}.{figure}", "value": round(value, 1), "unit": unit}
            print(json.dumps({**told, "against": "goal" if most else None, "ratio": ratio}))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=20_000, dest="ordinary", help="ordinary ones")
    parser.add_argument("--burst", type=int, default=1000, dest="pods", help="pods with shares of one burst")
    parser.add_argument("--rounds", type=int, default=2, help="bursts of each kind; 0 for none")
    parser.add_argument("--at-once", type=int, default=32, help="calls in flight")
    parser.add_argument("--own-core", action="store_true", help="the webhook has the last core for itself")
    parser.set_defaults(clients=1, profile=None)
    options = parser.parse_args()
    # Not below a long path: sockets have short ones.
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch:
        directory = Path(scratch) / "lab"
        try:
            bench = Scale(cluster.up(directory, node_count=0, owner=os.getpid()), Path(scratch), options)
            bench.prepare()
            with bench.administrator.namespace("others") as namespace:
                seconds = bench.fill(namespace)
                print(f"{options.nodes} nodes of {made.GPUS} GPUs, {options.ordinary} ordinary pods in {seconds:.0f} s")
                phases = bench.phases()
                _print_phases(phases, options.ordinary)
                problems = bench.bursts(KINDS, options.rounds)
        finally:
            cluster.down(directory)
    if problems:
        sys.exit("not all was accounted for")


if __name__ == "__main__":
    main()
