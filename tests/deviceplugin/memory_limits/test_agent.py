"""The whole agent publishes whether the driver keeps memory limits, once the driver has accepted and returned one."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from gpushare import codec, versions
from tests.deviceplugin import agent_process, simulated
from tests.deviceplugin.api_server_node import Cluster, cluster, installed
from tests.deviceplugin.memory_limits.conftest import DESCRIPTION

__all__ = ["cluster", "installed"]

pytestmark = pytest.mark.apiserver


@pytest.mark.parametrize(
    ("driver", "options", "kept_by"),
    [
        ("615.20.01", ("--driver-memory",), "driver"),
        ("550.54.15", ("--driver-memory",), "library"),
        ("615.20.01", (), "library"),
    ],
)
async def test_the_agent_publishes_what_keeps_memory_limits(
    cluster: Cluster,
    cgroups: Path,
    short_path: Path,
    tmp_path: Path,
    simulation: None,
    driver: str,
    options: tuple[str, ...],
    kept_by: str,
) -> None:
    if versions.parse_version(platform.release()) < versions.MIN_KERNEL_DMEM:
        kept_by = "library"
    (tmp_path / "node.ini").write_text(DESCRIPTION.format(driver=driver))
    await simulated.change("create", tmp_path / "node.ini", tmp_path / "gpus")
    (cgroups / "kubepods" / "pod00000000-0000-0000-0000-000000000000").mkdir(parents=True)
    credentials = cluster.agents_kubeconfig(short_path / "kubeconfig")
    async with agent_process.running(
        cluster.node,
        short_path,
        kubeconfig=credentials,
        gpus=tmp_path / "gpus",
        more=(f"--cgroup-root={cgroups}", *options),
    ) as agent:
        await agent.until("Wrote the GPUNode's status")
        (gpu,) = codec.read(await cluster.gpunode()).gpus
        assert gpu.memory_enforcement == kept_by
        if kept_by == "driver":
            assert agent.said("The driver keeps memory limits", gpu=gpu.uuid)
        else:
            why = [line["err"] for line in agent.lines if line["msg"] == "The driver does not keep memory limits"]
            assert len(why) == len(options)
            assert driver.startswith("615") or why[0].startswith("the driver is older than 615")
