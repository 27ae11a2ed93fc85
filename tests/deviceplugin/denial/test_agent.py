"""The running agent with `--deny-unregistered`: its own arbiter, the real kernel, and the next agent."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from deviceplugin.denial import kernel as bpf
from deviceplugin.denial import pod_denial, program
from gpushare import contract
from tests.deviceplugin import agent_process, waiting
from tests.deviceplugin import simulated_kubelet as kubelets
from tests.deviceplugin.denial.kernel_node import KernelNode
from tests.deviceplugin.test_agent_without_cluster import unreachable

pytestmark = pytest.mark.slow

STRANGER = program.KEY.pack(1 << 30)  # no process has such a pid


async def test_the_arbiter_renews_its_time_and_the_next_agent_inherits_the_map(
    kernel: KernelNode, short_path: Path, gpus: Path
) -> None:
    more = ("--deny-unregistered", f"--bpf-root={kernel.bpf}", f"--cgroup-root={kernel.cgroups}")
    kept = kernel.bpf / pod_denial.PIN_DIRECTORY / pod_denial.PINNED_MAP
    agent_process.has_served(short_path, gpus)
    (short_path / "kubelet").mkdir()
    kubelet = kubelets.Kubelet(short_path / "kubelet")
    await kubelet.start()
    for _ in range(2):
        async with agent_process.running(
            "node-a", short_path, kubeconfig=unreachable(short_path), gpus=gpus, more=more
        ) as agent:
            await agent.until("Serving")
            entries = opened(kept)
            assert until(entries) > time.monotonic() + bpf.AWAY_SECONDS / 2
            await waiting.until(lambda entries=entries: entries.get(STRANGER) is None, seconds=20)
            await waiting.until(lambda: contract.RESOURCE_PERCENT in kubelet.devices, seconds=20)
            entries.put(STRANGER, program.VALUE.pack(1, 1))
            agent.process.send_signal(signal.SIGKILL)
            await agent.ended()
            assert entries.get(STRANGER) is not None
            os.close(entries.descriptor)
    await kubelet.stop()


def opened(path: Path) -> bpf.Map:
    descriptor = bpf.pinned(path)
    assert descriptor is not None
    return bpf.Map(descriptor, key_bytes=program.KEY.size, value_bytes=program.VALUE.size)


def until(entries: bpf.Map) -> float:
    """Return until when an arbiter counts as running, in seconds of the kernel's clock."""
    value = entries.get(program.KEY.pack(program.ARBITER_KEY))
    assert value is not None
    return float(program.VALUE.unpack(value)[0]) / 1e9


async def test_where_denial_is_impossible_the_agent_runs_and_says_why(short_path: Path, gpus: Path) -> None:
    more = ("--deny-unregistered", f"--cgroup-root={short_path}")
    async with agent_process.running(
        "node-a", short_path, kubeconfig=unreachable(short_path), gpus=gpus, more=more
    ) as agent:
        await agent.until("Serving")
        assert agent.said("Unregistered processes are not denied the GPU")
