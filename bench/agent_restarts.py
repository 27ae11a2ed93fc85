"""Count the API requests of a rolling restart of many agents.

A real API server and the given number of real agents over simulated GPUs, each with its node's token and without a
kubelet. All agents start at once and are then restarted one by one, as a DaemonSet does. The audit log gives the number
of their requests. Prints a table, then one JSON object a figure; exits with 1 if a restarted agent sends more requests
than the goal.

Run: python bench/agent_restarts.py [--agents 20]
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import admission
from burst import made, webhooks
from tabulate import tabulate

from gpushare import contract
from lab import api_audit, cluster, kubeconfig

SIMGPU = admission.REPOSITORY / "build" / "simgpu"
GOAL = 12  # requests of one agent that starts on a node it already knows
SETTLING_SECONDS = 10.0
START_SECONDS = 180.0


class Agent:
    """The agent process of one node."""

    def __init__(self, bench: admission.Bench, name: str, directory: Path) -> None:
        (directory / "kubelet").mkdir(parents=True)
        self._log = directory / "log"
        (directory / "libgpushare.so").write_bytes(b"\x7fELF")
        sample = admission.REPOSITORY / "simgpu" / "samples" / "lab-node.ini"
        subprocess.run([SIMGPU / "simgpu", "create", sample, directory / "gpus"], check=True)
        bound = ("--bound-object-kind=Node", f"--bound-object-name={name}")
        account = ("create", "token", contract.AGENT_SERVICE_ACCOUNT, f"--namespace={contract.SYSTEM_NAMESPACE}")
        token = bench.administrator.kubectl(*account, *bound).strip()
        way = (bench.administrator.server, bench.administrator.ca_file)
        kubeconfig.write(
            directory / "kubeconfig", kubeconfig.with_token(*way, token, namespace=contract.SYSTEM_NAMESPACE)
        )
        self._command = (
            *(sys.executable, "-m", "deviceplugin", f"--node-name={name}"),
            f"--kubeconfig={directory / 'kubeconfig'}",
            f"--kubelet-directory={directory / 'kubelet'}",
            f"--root={directory / 'root'}",
            f"--run-directory={directory / 'run'}",
            f"--library={directory / 'libgpushare.so'}",
            f"--pod-resources-socket={directory / 'kubelet-holds.sock'}",
            f"--cdi-directory={directory / 'cdi'}",
            *("--probe-host=127.0.0.1", "--probe-port=0"),
        )
        self._environment = {**os.environ, "SIMGPU_DIR": str(directory / "gpus"), "LD_LIBRARY_PATH": str(SIMGPU)}
        self.start()

    def start(self) -> None:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, env=self._environment, stderr=log, cwd=admission.REPOSITORY)

    def serves(self) -> bool:
        return '"Serving"' in self._log.read_text()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)


def asked(log: Path) -> dict[str, str]:
    """Return the agents' requests by audit ID."""
    return {
        call.id: f"{call.verb} {call.resource}"
        for call in api_audit.calls(log)
        if call.account == contract.AGENT_SERVICE_ACCOUNT
    }


def since(log: Path, before: dict[str, str]) -> collections.Counter[str]:
    time.sleep(SETTLING_SECONDS)
    return collections.Counter(what for id_, what in asked(log).items() if id_ not in before)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=20)
    count = parser.parse_args().agents
    names = [f"restarted-{number}" for number in range(count)]
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch, contextlib.ExitStack() as stack:
        directory = Path(scratch) / "lab"
        stack.callback(cluster.down, directory)
        administrator = cluster.up(directory, node_count=0, owner=os.getpid())
        bench = admission.Bench(administrator, Path(scratch), SimpleNamespace(nodes=0, profile=None))  # type: ignore[arg-type]
        bench.prepare()
        bench.install_admission()
        made.node_objects(bench.server, names)
        agents: list[Agent] = []
        for number, name in enumerate(names):
            agents.append(Agent(bench, name, Path(scratch) / str(number)))
            stack.callback(agents[-1].stop)
        for agent in agents:
            webhooks.until(agent.serves, "an agent does not start", seconds=START_SECONDS)
        first = since(bench.lab.audit_log, {})
        before, began = asked(bench.lab.audit_log), time.monotonic()
        for agent in agents:
            agent.stop()
            agent.start()
            webhooks.until(agent.serves, "an agent does not start again", seconds=START_SECONDS)
        seconds = time.monotonic() - began
        again = since(bench.lab.audit_log, before)
    rows = [(what, first[what], again[what]) for what in sorted(first | again)]
    print(tabulate([*rows, ("all", first.total(), again.total())], ("request", "first start", "restart"), "github"))
    print(
        f"\n{count} agents, one after the other in {seconds:.0f} s: {again.total() / seconds:.1f} requests a second\n"
    )
    per_agent = again.total() / count
    for figure, value, ratio in (
        ("agents.first-start.requests", first.total() / count, None),
        ("agents.restart.requests", per_agent, round(per_agent / GOAL, 2)),
    ):
        line = {"figure": figure, "value": value, "unit": "a node", "against": "goal" if ratio else None}
        print(json.dumps({**line, "ratio": ratio}))
    return int(per_agent > GOAL)


if __name__ == "__main__":
    sys.exit(main())
