"""A long run under ordinary disturbances, to check that webhook and agent do not grow.

A real API server, two replicas of the webhook, and an agent over simulated GPUs. Pods with shares are created, resized
and deleted all the time. Every half minute a node is lost and returns, and one of the agent's GPUs fails and recovers.
Every minute one replica is replaced; the other runs throughout. The samples are memory, descriptors, threads, asyncio
tasks and the ledger entries without a pod. After the first third, the minimum of each window counts; a straight line
through these minima may not rise by more than 5 %, or by the small allowance in `soaking.flat`.

Prints a table, then one JSON object a line per figure; exits with 1 if a series is not flat, a pod was rejected, a GPU
over-committed, or the ledger is not empty at the end.

Run: python bench/soak.py [--minutes 15] [--rate 5]
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import admission
from burst import calls, made, webhooks
from soaking import flat
from steady import ground, ledger_watch, load

from gpushare import codec, contract
from lab import cluster, kubeconfig

SAMPLE_SECONDS = 2.0
RESIZE_SECONDS = 1.0
LOSS_SECONDS, RESTART_SECONDS = 30.0, 60.0
NODES = 16
AGENTS_NODE = "soak-agent"
SIMGPU = admission.REPOSITORY / "build" / "simgpu"
EMPTY_SECONDS = 120.0


class Soak(admission.Bench):
    """All disturbances, run by one thread next to the load."""

    def prepare(self) -> None:
        super().prepare()
        self.install_admission()
        made.node_objects(self.server, [AGENTS_NODE])

    def counting(self) -> dict[str, str]:
        """Return the environment in which a process writes its number of tasks."""
        (self.scratch / "tasks").mkdir(exist_ok=True)
        path = os.pathsep.join(map(str, (admission.REPOSITORY, admission.REPOSITORY / "bench")))
        return {"SOAK_TASKS": str(self.scratch / "tasks"), "PYTHONPATH": path}

    def taken(self, pid: int) -> dict[str, float]:
        return flat.of_process(pid, self.scratch / "tasks" / str(pid))

    @contextlib.contextmanager
    def agent(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run the agent of one more node, with its arbiter and without a kubelet."""
        directory = self.scratch / "agent"
        (directory / "kubelet").mkdir(parents=True)
        (directory / "libgpushare.so").write_bytes(b"\x7fELF")
        self.gpus = directory / "gpus"
        sample = admission.REPOSITORY / "simgpu" / "samples" / "lab-node.ini"
        subprocess.run([SIMGPU / "simgpu", "create", sample, self.gpus], check=True)
        bound = ("--bound-object-kind=Node", f"--bound-object-name={AGENTS_NODE}")
        account = ("create", "token", contract.AGENT_SERVICE_ACCOUNT, f"--namespace={contract.SYSTEM_NAMESPACE}")
        token = self.administrator.kubectl(*account, *bound).strip()
        credentials, namespace = directory / "kubeconfig", contract.SYSTEM_NAMESPACE
        way = (self.administrator.server, self.administrator.ca_file)
        kubeconfig.write(credentials, kubeconfig.with_token(*way, token, namespace))
        flags = (
            f"--node-name={AGENTS_NODE}",
            f"--kubeconfig={credentials}",
            f"--kubelet-directory={directory / 'kubelet'}",
            f"--root={directory / 'root'}",
            f"--run-directory={directory / 'run'}",
            f"--library={directory / 'libgpushare.so'}",
            f"--pod-resources-socket={directory / 'kubelet-holds.sock'}",
            f"--cdi-directory={directory / 'cdi'}",
            *("--probe-host=127.0.0.1", "--probe-port=0"),
        )
        environment = {**os.environ, **self.counting(), "SIMGPU_DIR": str(self.gpus), "LD_LIBRARY_PATH": str(SIMGPU)}
        counted = ("-m", "soaking.counted", "-m", "deviceplugin")
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen([sys.executable, *counted, *flags], env=environment, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)

    def soak(self) -> list[str]:
        """Run for the whole time, and return the problems."""
        with (
            self.administrator.namespace("soak") as namespace,
            ground.nodes(self.server, f"{namespace}-gpu", NODES) as (crowded, roomy),
            webhooks.running(
                2,
                self.scratch / "webhooks",
                self.kubeconfig,
                wrapper=("-m", "soaking.counted"),
                environment=self.counting(),
            ) as (replicas, _),
            self.agent() as agent,
        ):
            self.until_called(namespace)
            label = {"metadata": {"labels": roomy}}
            calls.ask(self.server, calls.call("PATCH", f"/api/v1/nodes/{AGENTS_NODE}", label, calls.MERGE_PATCH))
            seen = ledger_watch.LedgerWatch(self.server, self.lab.etcd / "client.sock")
            seen.start()
            stream = load.Load(self.server, namespace, crowded, roomy, rate=self.options.rate)
            stream.start()
            try:
                rows = self._pass(namespace, replicas, agent)
            finally:
                counted = stream.stop()
            problems = [creation.message for creation in counted.failed] + self._emptied()
            seen.stop()
            _print(rows, counted, seen)
        return problems + seen.broken + [f"{row.process}: {row.kind} grow" for row in rows if not row.is_flat]

    def _pass(self, namespace: str, replicas: list[webhooks.Replica], agent: subprocess.Popen[bytes]) -> list[flat.Row]:
        series = {name: flat.Series(name) for name in ("webhook", "agent", "arbiter", "ledger")}
        began = time.monotonic()
        due = {self._resize: RESIZE_SECONDS, self._lose: LOSS_SECONDS, self._hurt: LOSS_SECONDS}
        at = dict.fromkeys((*due, self._restart), began)
        due[self._restart] = RESTART_SECONDS
        self._namespace, self._replicas = namespace, replicas
        self._draw = random.Random(7)
        while (now := time.monotonic()) < began + 60.0 * self.options.minutes:
            for act, every_seconds in due.items():
                if now - at[act] >= every_seconds:
                    at[act] = now
                    act()
            at_seconds = time.monotonic() - began
            series["webhook"].add(at_seconds, self.taken(replicas[0].process.pid))
            series["agent"].add(at_seconds, self.taken(agent.pid))
            for child in _children(agent.pid):
                series["arbiter"].add(at_seconds, self.taken(child))
            series["ledger"].add(at_seconds, {"entries": float(self._unclaimed())})
            time.sleep(SAMPLE_SECONDS)
        return [row for samples in series.values() for row in samples.rows()]

    def _resize(self) -> None:
        """Change the memory of a random placed pod."""
        pods = calls.ask(self.server, calls.call("GET", f"/api/v1/namespaces/{self._namespace}/pods?limit=20"))["items"]
        placed = [pod for pod in pods if contract.ALLOCATION in pod["metadata"]["annotations"]]
        if placed:
            name = self._draw.choice(placed)["metadata"]["name"]
            notes = {"metadata": {"annotations": {contract.MEMORY: f"{self._draw.randint(4, 40)}Gi"}}}
            path = f"/api/v1/namespaces/{self._namespace}/pods/{name}"
            calls.send(self.server, [calls.call("PATCH", path, notes, calls.MERGE_PATCH)], at_once=1)

    def _lose(self) -> None:
        """Delete a node with its pods, and create one with the same name."""
        name = f"{self._namespace}-gpu-{self._draw.randrange(1, NODES)}"
        node = calls.ask(self.server, calls.call("GET", f"/api/v1/nodes/{name}"))
        paths = (f"/api/v1/nodes/{name}", f"{contract.GPUNODE_PATH}/{name}")
        calls.send(self.server, [calls.call("DELETE", path) for path in paths], at_once=1)
        pods = calls.ask(self.server, calls.call("GET", f"/api/v1/namespaces/{self._namespace}/pods"))["items"]
        gone = [pod["metadata"]["name"] for pod in pods if pod["metadata"]["annotations"].get(contract.NODE) == name]
        now = {"gracePeriodSeconds": 0}
        base = f"/api/v1/namespaces/{self._namespace}/pods"
        calls.send(self.server, [calls.call("DELETE", f"{base}/{pod}", now) for pod in gone])
        made.nodes(self.server, [name])
        label = {"metadata": {"labels": node["metadata"]["labels"]}}
        calls.ask(self.server, calls.call("PATCH", f"/api/v1/nodes/{name}", label, calls.MERGE_PATCH))

    def _hurt(self) -> None:
        """Fail one of the agent's GPUs, and heal the previous one."""
        before, self._hurt_gpu = getattr(self, "_hurt_gpu", 0), self._draw.randrange(4)
        subprocess.run([SIMGPU / "simgpu", "heal", self.gpus, str(before)], check=True)
        subprocess.run([SIMGPU / "simgpu", "fail", self.gpus, str(self._hurt_gpu), "lost"], check=True)

    def _restart(self) -> None:
        """Replace the second replica; the first runs throughout."""
        self._replicas[1].restart()

    def _entries(self) -> list[Any]:
        items = calls.ask(self.server, calls.call("GET", contract.GPUNODE_PATH))["items"]
        return [entry for item in items for entry in codec.read(item).allocations]

    def _unclaimed(self) -> int:
        """Return the number of ledger entries without a pod."""
        entries = self._entries()
        pods = calls.ask(self.server, calls.call("GET", f"/api/v1/namespaces/{self._namespace}/pods"))["items"]
        uids = {pod["metadata"]["uid"] for pod in pods}
        return sum(bool(entry.pod.uid) and entry.pod.uid not in uids for entry in entries)

    def _emptied(self) -> list[str]:
        """Wait until the ledger is empty after the last pod, and return its remaining entries."""
        deadline = time.monotonic() + EMPTY_SECONDS
        while (left := self._entries()) and time.monotonic() < deadline:
            time.sleep(1.0)
        return [f"left in the ledger: {entry.id} of {entry.pod}" for entry in left]


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _print(rows: list[flat.Row], counted: load.Counted, seen: ledger_watch.LedgerWatch) -> None:
    print("\n| process | of | at first | median | most | least, window by window | grown | flat |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        values = (f"{value:.1f}" for value in (row.first, row.median, row.most))
        least = " ".join(f"{value:.0f}" for value in row.least)
        flat_word = "yes" if row.is_flat else "**no**"
        print(f"| {row.process} | {row.kind} | {' | '.join(values)} | {least} | {row.grown:.1f} | {flat_word} |")
    sent = f"{len(counted.sent)} pods, {counted.gated} gated, {len(counted.failed)} failed"
    print(f"\n{sent}; {seen.versions} versions of GPUNodes, {len(seen.broken)} over-commitments\n")
    for row in rows:
        document = {"figure": f"soak.{row.process}.{row.kind}", **dataclasses.asdict(row), "flat": row.is_flat}
        print(json.dumps(document))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--rate", type=float, default=5.0, help="pods a second")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch:  # keeps socket paths short
        directory = Path(scratch) / "lab"
        try:
            administrator = cluster.up(directory, node_count=0, owner=os.getpid())
            bench = Soak(administrator, Path(scratch), SimpleNamespace(nodes=0, profile=None, **vars(options)))  # type: ignore[arg-type]
            bench.prepare()
            problems = bench.soak()
        finally:
            cluster.down(directory)
    for sentence in sorted(set(problems))[:20]:
        print(sentence)
    if problems:
        sys.exit(1)


if __name__ == "__main__":
    main()
