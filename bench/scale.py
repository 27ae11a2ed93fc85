"""A large cluster on a real API server: the webhook's memory and time next to very many ordinary pods.

1,000 nodes of 8 GPUs and 20,000 ordinary pods by default, each of a typical size (5.7 KB), made by hand: there is no
kubelet and no scheduler. Pods with shares may exist too, admitted by the webhook and bound. A replica starts; then the
API server restarts, so the replica lists everything again; with shares, a defragmentation plan runs at the same time;
then very many wait for one GPU; then pods with shares arrive in bursts. "Ready" counts from the replica's start, or
from the API server's return.

Memory is the resident set (VmHWM since the phase began, VmRSS at its end). A stall is the slowest of very many calls to
`/healthz` in the phase, which a busy machine stretches: `worked` is the CPU time of the replica's main thread during
the stall, `queued` is how long it waited for a CPU. The bursts are those of `admission.py`; their rate is compared with
a webhook that answers a constant, in the same run and cluster. With `--own-core` either webhook has the last core for
itself, and everything else runs on the others. Prints tables, then one JSON object a line per figure.

Run: python bench/scale.py [--nodes 1000] [--pods 20000] [--shares 0] [--burst 1000] [--rounds 2] [--waiting 5000]
    [--quiet 20] [--own-core]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import admission
from burst import calls, made, webhooks
from large import phases, planning, standing, waiting

from gpushare import contract
from lab import build, cluster, component, control_plane, daemon_process

MIB = 1 << 20
OTHERS, STANDING = "others", "standing"
PATIENCE_SECONDS = 180.0
MAX_MIB = {20_000: 512, 100_000: 1024}  # by pods; no goal for more pods
MAX_HANDED_OVER_SECONDS = 1.0
MAX_STALL_MS, MAX_READY_SECONDS = 100.0, 30.0


class Scale(admission.Bench):
    """The phases and bursts of a large cluster."""

    def fill(self) -> tuple[float, float]:
        """Create the ordinary pods and those with shares; return the seconds of each."""
        for namespace in (OTHERS, STANDING):  # deleted with the lab
            self.administrator.kubectl("create", "namespace", namespace)
            self.administrator.ensure_default_service_account(namespace)
        ordinary = standing.fill(self.server, made.ordinary(OTHERS, self.options.ordinary))
        if not self.options.shares:
            return ordinary, 0.0
        self.install_admission()
        with webhooks.running(1, self.scratch / "standing", self.kubeconfig):
            self.until_called(STANDING)
            return ordinary, standing.shares(self.server, STANDING, self.options.shares)

    def measure(self) -> None:
        """Measure one replica that starts, a restart of the API server, a plan, and many gated pods; print each."""
        self.install_admission()
        with webhooks.running(1, self.scratch / "phases", self.kubeconfig) as (replicas, _):
            _print_phases(self._phases(replicas[0]), self.options.ordinary)
            if self.options.shares:
                _print_planned(planning.measure(replicas[0], self.kubeconfig))
            if self.options.waiting:
                _print_waiting(self._waiting(replicas[0]))

    def _phases(self, replica: webhooks.Replica) -> dict[str, phases.Phase]:
        with phases.Watched(replica) as watched:
            time.sleep(self.options.quiet)
        measured = {"start": watched.phase(replica.ready_seconds)}
        with phases.Watched(replica) as watched:
            self._restart_api_server()
            began = time.monotonic()
            webhooks.until(replica.ready, "the replica did not become ready again", seconds=PATIENCE_SECONDS)
            seconds = time.monotonic() - began
            time.sleep(self.options.quiet)
        return {**measured, "restart of the API server": watched.phase(seconds)}

    def _waiting(self, replica: webhooks.Replica) -> waiting.Waited:
        with self.administrator.namespace("waiting") as namespace:
            pids = self.control_plane() | {"webhook": replica.process.pid}
            nodes = calls.ask(self.server, calls.call("GET", contract.GPUNODE_PATH))["items"]
            empty = next(node for node in nodes if not (node.get("spec") or {}).get("allocations"))
            name = empty["metadata"]["name"]
            return waiting.measure(
                self.server,
                namespace,
                name,
                self.options.waiting,
                lambda: admission.cpu(pids),
                quiet_seconds=self.options.quiet,
            )

    def _restart_api_server(self) -> None:
        daemon_process.stop([("kube-apiserver", self.options.quiet)], self.lab.processes)
        started = control_plane.api_server(self.lab, build.ensure())
        component.start([started], self.lab)
        component.wait([started], self.lab, PATIENCE_SECONDS)

    def before_burst(self, processes: Iterable[int]) -> None:
        """Pin the webhook that answers the burst to the last core, if `--own-core` is set."""
        if not self.options.own_core:
            return
        *others, own = sorted(os.sched_getaffinity(1))
        for pid in (os.getpid(), *self.control_plane().values()):
            _pin(pid, others)
        for pid in processes:
            _pin(pid, [own])


def _pin(pid: int, cores: Sequence[int]) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), cores)


def _print_phases(measured: dict[str, phases.Phase], pods: int) -> None:
    goal = next((mib for most, mib in sorted(MAX_MIB.items()) if pods <= most), None)
    print(f"\n{'':<28}{'ready s':>9}{'peak MiB':>10}{'left MiB':>10}{'stall ms':>10}{'worked':>8}{'queued':>8}")
    for name, phase in measured.items():
        peak, left = phase.peak_bytes / MIB, phase.left_bytes / MIB
        stall = (
            f"{1000 * phase.stall_seconds:>10.0f}{1000 * phase.worked_seconds:>8.0f}{1000 * phase.queued_seconds:>8.0f}"
        )
        print(f"{name:<28}{phase.ready_seconds:>9.1f}{peak:>10.0f}{left:>10.0f}{stall}")
    for name, phase in measured.items():
        for figure, value, unit, most in (
            ("ready", phase.ready_seconds, "s", MAX_READY_SECONDS),
            ("peak", phase.peak_bytes / MIB, "MiB", goal),
            ("left", phase.left_bytes / MIB, "MiB", goal),
            ("stall", 1000 * phase.stall_seconds, "ms", MAX_STALL_MS),
            ("stall.worked", 1000 * phase.worked_seconds, "ms", None),
            ("stall.queued", 1000 * phase.queued_seconds, "ms", None),
        ):
            ratio = round(value / most, 2) if most else None
            line = {"figure": f"scale.{name.replace(' ', '-')}.{figure}", "value": round(value, 1), "unit": unit}
            print(json.dumps({**line, "against": "goal" if most else None, "ratio": ratio}))


def _print_planned(planned: planning.Planned) -> None:
    print(f"\na plan to defragment, {planned.moves} moves:")
    for figure, value, unit in (
        ("cpu", planned.cpu_seconds, "s"),
        ("peak", planned.peak_bytes / MIB, "MiB"),
        ("stall", 1000 * planned.stall_seconds, "ms"),
    ):
        goal = MAX_STALL_MS if figure == "stall" else None
        line = {"figure": f"scale.plan.{figure}", "value": round(value, 1), "unit": unit}
        print(json.dumps({**line, "against": goal and "goal", "ratio": goal and round(value / goal, 2)}))


def _print_waiting(waited: waiting.Waited) -> None:
    longest = max(waited.handed_over_seconds)
    spent = ", ".join(f"{name} {ms:.1f}" for name, ms in waited.cpu_ms.items())
    print(f"\n{waited.pods} gated pods: CPU ms a second: {spent}")
    print(
        "seconds from one pod's end to the next one's start:",
        *(f"{seconds:.2f}" for seconds in waited.handed_over_seconds),
    )
    for figure, value, unit, goal in (
        ("handed-over.longest", longest, "s", MAX_HANDED_OVER_SECONDS),
        *((f"cpu.{name}", ms, "ms/s", None) for name, ms in waited.cpu_ms.items()),
    ):
        line = {"figure": f"scale.waiting.{figure}", "value": round(value, 2), "unit": unit}
        print(
            json.dumps({**line, "against": "goal" if goal else None, "ratio": round(value / goal, 2) if goal else None})
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=20_000, dest="ordinary", help="ordinary pods")
    parser.add_argument("--shares", type=int, default=0, help="pods with shares that exist before the measurement")
    parser.add_argument("--burst", type=int, default=1000, dest="pods", help="pods with shares of one burst")
    parser.add_argument("--rounds", type=int, default=2, help="bursts of each kind; 0 for none")
    parser.add_argument("--waiting", type=int, default=5000, help="gated pods; 0 for none")
    parser.add_argument("--kinds", default=",".join(admission.KINDS), help="which bursts (%(default)s)")
    parser.add_argument(
        "--quiet",
        type=float,
        default=20.0,
        help="seconds to watch each phase, and the API server's shutdown timeout (%(default)s)",
    )
    parser.add_argument("--at-once", type=int, default=32, help="calls in flight")
    parser.add_argument("--own-core", action="store_true", help="the webhook has the last core for itself")
    parser.set_defaults(clients=1, profile=None)
    options = parser.parse_args()
    # /tmp keeps the path short: Unix socket paths are limited.
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch:
        directory = Path(scratch) / "lab"
        try:
            bench = Scale(cluster.up(directory, node_count=0, owner=os.getpid()), Path(scratch), options)
            bench.prepare()
            ordinary, shares = bench.fill()
            print(f"{options.nodes} nodes of {made.GPUS} GPUs, {options.ordinary} ordinary pods in {ordinary:.0f} s,")
            print(f"{options.shares} pods with shares in {shares:.0f} s", flush=True)
            bench.measure()
            problems = bench.bursts(options.kinds.split(","), options.rounds)
        finally:
            cluster.down(directory)
    if problems:
        sys.exit("some pods or allocations are not accounted for")


if __name__ == "__main__":
    main()
