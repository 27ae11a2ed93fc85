"""An agent whose API server does not answer: what it can do it does, and it says what it cannot."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gpushare import contract
from lab import kubeconfig as files
from tests.deviceplugin import agent_process, simulated
from tests.deviceplugin import kubelet as kubelets


def unreachable(directory: Path) -> Path:
    """A kubeconfig that leads nowhere."""
    ca_file = directory / "ca.crt"
    ca_file.write_bytes(b"")
    path = directory / "kubeconfig"
    # Port 1 is reserved and nobody listens there.
    text = files.with_token("http://127.0.0.1:1", ca_file, "token", "default")
    files.write(path, text.replace("certificate-authority-data: ''", "insecure-skip-tls-verify: true"))
    return path


async def test_the_kubelet_is_served_and_readiness_says_what_is_missing(short_path: Path, gpus: Path) -> None:
    (short_path / "kubelet").mkdir()
    kubelet = kubelets.Kubelet(short_path / "kubelet")
    await kubelet.start()
    async with agent_process.running("node-a", short_path, kubeconfig=unreachable(short_path), gpus=gpus) as agent:
        await kubelet.until(lambda: len(kubelet.devices) == 2)
        assert len(kubelet.devices[contract.RESOURCE_PERCENT]) == 400
        status, text = await agent.get("/readyz")
        assert status == 503
        assert "gpunode: the GPUNode node-a is not written yet" in text
        assert "pods: the pods of this node are not known yet" in text
        assert (await agent.get("/healthz"))[0] == 200
        assert "gpushare_gpu_memory_bytes{" in (await agent.get("/metrics"))[1]
        assert agent.said(
            "Compute is not enforced yet: a share's request and limit of compute are accounted for, its memory is enforced"
        )
        assert (short_path / "run" / contract.ARBITER_SOCKET_NAME).is_socket()
        assert await agent.stop() == 0
        assert not agent.other
    assert list((short_path / "run").iterdir()) == []
    assert [path.name for path in (short_path / "kubelet").iterdir()] == ["kubelet.sock"]
    await kubelet.stop()


async def test_an_xid_is_told_to_the_kubelet_at_once(short_path: Path, gpus: Path) -> None:
    (short_path / "kubelet").mkdir()
    kubelet = kubelets.Kubelet(short_path / "kubelet")
    await kubelet.start()
    uuid = simulated.uuids(gpus)[1]

    def ill() -> set[str]:
        devices = kubelet.devices.get(contract.RESOURCE_PERCENT, {})
        return {identity.split("::")[0] for identity, health in devices.items() if health == "Unhealthy"}

    async with agent_process.running("node-a", short_path, kubeconfig=unreachable(short_path), gpus=gpus) as agent:
        await kubelet.until(lambda: len(kubelet.devices) == 2)
        await agent.until("Serving")
        await asyncio.sleep(1.1)  # until the driver's events are subscribed to: what was before is not told
        await simulated.change("fail", gpus, "1", "xid=31")  # a program's own fault
        await simulated.change("fail", gpus, "1", "xid=94")
        await kubelet.until(lambda: ill() == {uuid})
        assert agent.said("The driver told of an XID", gpu=uuid, xid=31)
        reason = "XID 94 happened: it is unhealthy until 300 s without another"
        assert agent.said("A GPU is not healthy", gpu=uuid, err=reason)
    await kubelet.stop()


async def test_without_a_kubelet_it_runs_and_is_not_ready(short_path: Path, gpus: Path) -> None:
    async with agent_process.running("node-a", short_path, kubeconfig=unreachable(short_path), gpus=gpus) as agent:
        await agent.until("Not registered with the kubelet")
        _, text = await agent.get("/readyz")
        assert f"kubelet: no kubelet listens on {short_path}/kubelet/kubelet.sock" in text


async def test_without_gpus_it_does_not_start_and_says_why_in_one_line(short_path: Path, tmp_path: Path) -> None:
    async with agent_process.running(
        "node-a", short_path, kubeconfig=unreachable(short_path), gpus=tmp_path / "none"
    ) as agent:
        assert await agent.ended() == 1
        (line,) = agent.lines
        assert line["msg"] == "The agent cannot start"
        assert "nvmlInit() failed" in line["err"]


async def test_without_its_library_it_does_not_start(short_path: Path, gpus: Path) -> None:
    async with agent_process.running(
        "node-a", short_path, kubeconfig=unreachable(short_path), gpus=gpus, library=short_path / "nothing.so"
    ) as agent:
        assert await agent.ended() == 1
        assert "--library names libgpushare.so" in agent.lines[-1]["err"]
