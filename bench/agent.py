"""Measure an idle agent's memory and CPU time on a node with 8 GPUs and 100 containers, and its start time.

    python -m bench.agent [--seconds 60]

The agent and its arbiter are the real processes, over simulated GPUs. A test kubelet has admitted 100 pods and follows
the agent's device lists. No API server runs: its watches cost nothing while nothing changes. The goals are 100 MB and 1
% of a core, and 5 s from the start until the kubelet has the devices; the agent waits two of these seconds for the API
server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from pathlib import Path

from deviceplugin.kubelet import share_answers
from lab import certificates
from tests.deviceplugin import agent_process, simulated
from tests.deviceplugin import simulated_kubelet as kubelets

GPUS, CONTAINERS = 8, 100
GOAL_BYTES, GOAL_RATIO, GOAL_START_SECONDS = 100 * 10**6, 0.01, 5.0
PERCENT = "gpushare.io/gpu-percent"
# in a kubelet's first minute the agent also reads its checkpoint
SETTLING_SECONDS = 5.0 + share_answers.KUBELET_START_SECONDS


# Use a mounted ServiceAccount, as in a pod: a kubeconfig needs a library that the agent's pod never loads.
AS_IN_A_POD = """
import os, pathlib, sys
from gpushare.cluster import api_connection
api_connection.find.__kwdefaults__["service_account"] = pathlib.Path(os.environ["BENCH_SERVICE_ACCOUNT"])
from deviceplugin import __main__
sys.exit(__main__.main())
"""


def account(directory: Path) -> dict[str, str]:
    """Write a ServiceAccount for an API server that does not exist, and return the environment that selects it."""
    mounted = directory / "serviceaccount"
    mounted.mkdir()
    (mounted / "token").write_text("token")
    (mounted / "namespace").write_text("gpushare-system")
    certificates.create(mounted, [])  # its CA is ca.crt
    return {
        "BENCH_SERVICE_ACCOUNT": str(mounted),
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": "1",
    }


def cpu_seconds(pid: int) -> float:
    """Return a process's user and system time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Return a process's resident set size."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


async def measure(seconds: float) -> tuple[float, int, int, float]:
    """Return the seconds until the kubelet has the devices, resident bytes of agent and arbiter, and their share of a
    core.

    The share of a core is their sum, measured for `seconds` after both have settled.
    """
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch:
        directory = Path(scratch)
        description = directory / "node.ini"
        description.write_text(
            simulated.NODE.read_text().replace("count = 2", "count = 4").replace("[gpu 2]", "[gpu 4]")
        )
        gpus = directory / "gpus"
        await simulated.change("create", description, gpus)
        agent_process.has_served(directory, gpus)
        (directory / "kubelet").mkdir()
        kubelet = kubelets.Kubelet(directory / "kubelet")
        await kubelet.start()
        began = time.monotonic()
        async with agent_process.running(
            "bench", directory, kubeconfig=None, gpus=gpus, program=("-c", AS_IN_A_POD), environment=account(directory)
        ) as agent:
            await kubelet.until(lambda: len(kubelet.devices.get(PERCENT, ())) == 100 * GPUS)
            start_seconds = time.monotonic() - began
            for number in range(CONTAINERS):
                await kubelet.admit(f"pod-{number}", PERCENT, 5)
            await asyncio.sleep(SETTLING_SECONDS)
            (arbiter,) = [line["pid"] for line in agent.lines if line["msg"] == "Started the arbiter"]
            pids = agent.process.pid, arbiter
            before = sum(map(cpu_seconds, pids))
            await asyncio.sleep(seconds)
            used = (
                start_seconds,
                resident_bytes(pids[0]),
                resident_bytes(arbiter),
                (sum(map(cpu_seconds, pids)) - before) / seconds,
            )
            agent.lines.clear()
        await kubelet.stop()
    return used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to watch (%(default)s)")
    start_seconds, agent_bytes, arbiter_bytes, ratio = asyncio.run(measure(parser.parse_args().seconds))
    memory_bytes = agent_bytes + arbiter_bytes
    parts = f"agent {agent_bytes / 1e6:.1f}, arbiter {arbiter_bytes / 1e6:.1f}"
    memory = f"{memory_bytes / 1e6:.1f} MB resident ({parts})"
    print(f"{GPUS} GPUs, {CONTAINERS} containers, idle: {memory}, {ratio:.2%} of a core")
    print(f"the kubelet has the devices {start_seconds:.1f} s after its start")
    figures = (
        ("agent.idle.memory", memory_bytes / 1e6, "MB", memory_bytes / GOAL_BYTES),
        ("agent.idle.memory.arbiter", arbiter_bytes / 1e6, "MB", arbiter_bytes / GOAL_BYTES),
        ("agent.idle.cpu", ratio * 100, "% of a core", ratio / GOAL_RATIO),
        ("agent.start", start_seconds, "s", start_seconds / GOAL_START_SECONDS),
    )
    for figure, value, unit, compared in figures:
        line = {
            "figure": figure,
            "value": round(value, 2),
            "unit": unit,
            "against": "goal",
            "ratio": round(compared, 3),
        }
        print(json.dumps(line))


if __name__ == "__main__":
    main()
