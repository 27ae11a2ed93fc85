"""An agent whose API server does not answer: it serves the kubelet, and reports what is missing."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from deviceplugin.host import kernel_process
from deviceplugin.modes import mode_checkpoint
from gpushare import contract
from lab import kubeconfig as files
from tests.deviceplugin import agent_process, simulated, waiting
from tests.deviceplugin import simulated_kubelet as kubelets
from tests.deviceplugin.agent_process import PROMPT

pytestmark = pytest.mark.slow


def unreachable(directory: Path) -> Path:
    """Write a kubeconfig without a server behind it."""
    ca_file = directory / "ca.crt"
    ca_file.write_bytes(b"")
    path = directory / "kubeconfig"
    # Port 1 is reserved, so no server listens on it.
    text = files.with_token("http://127.0.0.1:1", ca_file, "token", "default")
    files.write(path, text.replace("certificate-authority-data: ''", "insecure-skip-tls-verify: true"))
    return path


@pytest.fixture(autouse=True)
def _known(short_path: Path, gpus: Path) -> None:
    agent_process.has_served(short_path, gpus)


def healthy(kubelet: kubelets.Kubelet) -> int:
    """Return how many units of compute are advertised as healthy."""
    return list(kubelet.devices.get(contract.RESOURCE_PERCENT, {}).values()).count("Healthy")


async def hears(agent: agent_process.Agent, gpus: Path) -> None:
    """Wait until the agent gets the driver's events. There is no sign of that, and earlier events are lost."""
    uuid = simulated.uuids(gpus)[1]
    for _ in range(40):
        await simulated.change("fail", gpus, "1", "xid=31")  # a program's fault, not the GPU's
        with contextlib.suppress(TimeoutError):
            await waiting.until(lambda: agent.said("The driver reported an XID", gpu=uuid, xid=31), seconds=1.0)
            return
    pytest.fail("the agent never heard of an XID")


async def test_a_first_agent_offers_nothing_before_it_knows_its_configuration(short_path: Path, gpus: Path) -> None:
    """A pod that is admitted on a guess would keep its GPU from its configured mode."""
    (short_path / "root" / mode_checkpoint.NAME).unlink()
    (short_path / "kubelet").mkdir()
    kubelet = kubelets.Kubelet(short_path / "kubelet")
    await kubelet.start()
    async with agent_process.running("node-a", short_path, kubeconfig=unreachable(short_path), gpus=gpus) as agent:
        status, text = await agent.get("/readyz")
        assert status == 500
        assert "configuration: the node's configuration is not known yet" in text
        await asyncio.sleep(3)  # longer than an agent with a checkpoint waits for the API server
        assert not kubelet.devices
        assert not (short_path / "root" / mode_checkpoint.NAME).exists()
    await kubelet.stop()


async def test_gpus_that_are_unreadable_at_the_start_are_reported(short_path: Path, gpus: Path) -> None:
    (short_path / "kubelet").mkdir()
    kubelet = kubelets.Kubelet(short_path / "kubelet")
    await kubelet.start()
    for lost in (["1"], ["0", "2", "3"]):
        for index in lost:
            await simulated.change("fail", gpus, index, "lost")
        async with agent_process.running("node-a", short_path, kubeconfig=unreachable(short_path), gpus=gpus) as agent:
            await agent.until("Serving")
            for index in lost:
                assert agent.said("A GPU cannot be read", index=int(index))
            metrics = (await agent.get("/metrics"))[1]
            for index in lost:
                assert f'gpushare_gpu_healthy{{gpu="",index="{index}",model="",node="node-a"}} 0.0' in metrics
            _, text = await agent.get("/readyz")
            assert ("gpus: GPU 0 does not answer: " in text) == (lost != ["1"]), text
    await kubelet.stop()


async def test_the_kubelet_is_served_and_readiness_reports_what_is_missing(short_path: Path, gpus: Path) -> None:
    (short_path / "kubelet").mkdir()
    kubelet = kubelets.Kubelet(short_path / "kubelet")
    await kubelet.start()
    async with agent_process.running("node-a", short_path, kubeconfig=unreachable(short_path), gpus=gpus) as agent:
        await kubelet.until(lambda: len(kubelet.devices) == 2)
        assert len(kubelet.devices[contract.RESOURCE_PERCENT]) == 400
        status, text = await agent.get("/readyz")
        assert status == 500
        assert "gpunode: the GPUNode node-a is not written yet" in text
        assert "pods: the pods of this node are not known yet" in text
        assert (await agent.get("/healthz"))[0] == 200
        assert "gpushare_gpu_memory_bytes{" in (await agent.get("/metrics"))[1]
        assert (short_path / "run" / contract.ARBITER_SOCKET_NAME).is_socket()
        assert await agent.stop() == 0
        assert not agent.other
    assert list((short_path / "run").iterdir()) == []
    assert [path.name for path in (short_path / "kubelet").iterdir()] == ["kubelet.sock"]
    await kubelet.stop()


async def test_the_audit_runs_and_reports_what_it_does_not_know(short_path: Path, gpus: Path) -> None:
    async with agent_process.running("node-a", short_path, kubeconfig=unreachable(short_path), gpus=gpus) as agent:
        async with asyncio.timeout(30):
            while (answer := await agent.get(contract.AUDIT_PATH))[0] != 200:  # noqa: ASYNC110 (nothing tells us)
                await asyncio.sleep(0.1)
        audit = json.loads(answer[1])
        assert (len(audit["gpus"]), audit["shares"]) == (4, [])
        assert audit["problem"] == "the pods and the GPUNode are not known yet, so shares cannot be checked"


async def test_taking_over_ledgers_leaves_other_files_alone(short_path: Path, gpus: Path) -> None:
    kept = short_path / "state" / "faults.json"
    kept.parent.mkdir()
    kept.write_text(json.dumps({"boot": kernel_process.boot_id(), "faults": {}}))
    async with agent_process.running("node-a", short_path, kubeconfig=unreachable(short_path), gpus=gpus) as agent:
        await agent.until("Serving")
        assert not agent.said("Dropped a ledger's record")
    assert kept.exists()


async def test_a_gpu_without_driver_events_is_not_offered(short_path: Path, gpus: Path) -> None:
    (short_path / "kubelet").mkdir()
    kubelet = kubelets.Kubelet(short_path / "kubelet")
    await kubelet.start()
    await simulated.change("fail", gpus, "1", "mute")

    async with agent_process.running(
        "node-a", short_path, kubeconfig=unreachable(short_path), gpus=gpus, program=PROMPT
    ):
        await kubelet.until(lambda: healthy(kubelet) == 300)
    silenced = {"DP_DISABLE_HEALTHCHECKS": "all"}
    kubelet.devices.clear()
    async with agent_process.running(
        "node-a", short_path, kubeconfig=unreachable(short_path), gpus=gpus, environment=silenced, program=PROMPT
    ):
        await kubelet.until(lambda: healthy(kubelet) == 400)
    await kubelet.stop()


async def test_an_xid_makes_the_gpu_unhealthy_for_the_kubelet(short_path: Path, gpus: Path) -> None:
    (short_path / "kubelet").mkdir()
    kubelet = kubelets.Kubelet(short_path / "kubelet")
    await kubelet.start()
    uuid = simulated.uuids(gpus)[1]

    def ill() -> int:
        return list(kubelet.devices.get(contract.RESOURCE_PERCENT, {}).values()).count("Unhealthy")

    async with agent_process.running(
        "node-a", short_path, kubeconfig=unreachable(short_path), gpus=gpus, program=PROMPT
    ) as agent:
        await kubelet.until(lambda: len(kubelet.devices) == 2)
        await agent.until("Serving")
        await hears(agent, gpus)
        await simulated.change("fail", gpus, "1", "xid=94")
        await kubelet.until(lambda: ill() == 100)
        assert agent.said("The driver reported an XID", gpu=uuid, xid=31)
        reason = "XID 94 happened: it is unhealthy until 300 s pass without another"
        assert agent.said("A GPU is not healthy", gpu=uuid, err=reason)
    await kubelet.stop()


async def test_a_fault_outlives_the_agent_unless_the_next_one_ignores_it(short_path: Path, gpus: Path) -> None:
    (short_path / "kubelet").mkdir()
    kubelet = kubelets.Kubelet(short_path / "kubelet")
    await kubelet.start()

    def ill() -> int:
        return sum(health == "Unhealthy" for health in kubelet.devices[contract.RESOURCE_PERCENT].values())

    async def started(agent: agent_process.Agent, told_before: int) -> None:
        await agent.until("Serving")
        await kubelet.until(lambda: kubelet.lists > told_before and len(kubelet.devices) == 2)

    def running(environment: dict[str, str]) -> contextlib.AbstractAsyncContextManager[agent_process.Agent]:
        credentials = unreachable(short_path)
        return agent_process.running(
            "node-a", short_path, kubeconfig=credentials, gpus=gpus, environment=environment, program=PROMPT
        )

    async with running({"DP_DISABLE_HEALTHCHECKS": "95"}) as agent:
        await started(agent, 0)
        await hears(agent, gpus)
        await simulated.change("fail", gpus, "1", "xid=95")
        await agent.until("The driver reported an XID", xid=95)
        await simulated.change("fail", gpus, "2", "xid=94")
        await kubelet.until(lambda: ill() == 100)
        agent.process.kill()
    # The driver reports an event once, so the next agent does not get it again.
    for environment, expected in (({}, 100), ({"DP_DISABLE_HEALTHCHECKS": "94"}, 0)):
        before = kubelet.lists
        async with running(environment) as agent:
            await started(agent, before + 1)
            assert ill() == expected
            agent.process.kill()
    await kubelet.stop()


async def test_a_gpu_that_was_reset_while_no_agent_ran_is_healthy(short_path: Path, gpus: Path) -> None:
    (short_path / "kubelet").mkdir()
    kubelet = kubelets.Kubelet(short_path / "kubelet")
    await kubelet.start()

    def running() -> contextlib.AbstractAsyncContextManager[agent_process.Agent]:
        return agent_process.running(
            "node-a", short_path, kubeconfig=unreachable(short_path), gpus=gpus, program=PROMPT
        )

    async with running() as agent:
        await agent.until("Serving")
        await hears(agent, gpus)
        await simulated.change("fail", gpus, "1", "lost")
        await agent.until("The driver reported an XID", xid=79)
        await kubelet.until(lambda: healthy(kubelet) == 300)
        agent.process.kill()
    await simulated.change("heal", gpus, "1")
    kubelet.devices.clear()
    async with running():
        await kubelet.until(lambda: healthy(kubelet) == 400)
    await kubelet.stop()


async def test_a_short_silence_of_the_driver_is_no_reset(short_path: Path, gpus: Path) -> None:
    (short_path / "kubelet").mkdir()
    kubelet = kubelets.Kubelet(short_path / "kubelet")
    await kubelet.start()

    async def look() -> None:
        await simulated.change("fail", gpus, "2", "xid=31")  # a program's fault, but it makes the agent observe at once

    async with agent_process.running(
        "node-a", short_path, kubeconfig=unreachable(short_path), gpus=gpus, program=PROMPT
    ) as agent:
        await agent.until("Serving")
        await hears(agent, gpus)
        await simulated.change("fail", gpus, "1", "xid=48")
        await kubelet.until(lambda: healthy(kubelet) == 300)
        await simulated.change("fail", gpus, "0", "silent")
        await look()
        await kubelet.until(lambda: healthy(kubelet) == 0)
        await simulated.change("heal", gpus, "0")
        await look()
        await kubelet.until(lambda: healthy(kubelet) > 0)
        assert healthy(kubelet) == 300
    await kubelet.stop()


async def test_a_driver_that_hangs_makes_its_gpus_unhealthy(short_path: Path, gpus: Path) -> None:
    (short_path / "kubelet").mkdir()
    kubelet = kubelets.Kubelet(short_path / "kubelet")
    await kubelet.start()
    program = (
        "-c",
        "import sys; from deviceplugin import __main__; from deviceplugin.hardware import observation; "
        "from deviceplugin.state import advertisement; advertisement.DECREASE_SECONDS = 0.1; "
        "observation.SILENT_SECONDS = observation.LOOK_SECONDS = 2.0; sys.exit(__main__.main())",
    )
    async with agent_process.running(
        "node-a", short_path, kubeconfig=unreachable(short_path), gpus=gpus, program=program
    ) as agent:
        await kubelet.until(lambda: healthy(kubelet) == 400)
        await simulated.change("fail", gpus, "1", "hung")
        await agent.until("The driver does not answer")
        await agent.until("A GPU is not healthy", index=0)
        assert any("the driver has not answered for 2 s" in line.get("err", "") for line in agent.lines)
        await kubelet.until(lambda: healthy(kubelet) == 0)
        await simulated.change("heal", gpus, "1")
        await kubelet.until(lambda: healthy(kubelet) == 400)
    await kubelet.stop()


async def test_without_a_kubelet_the_agent_runs_but_is_not_ready(short_path: Path, gpus: Path) -> None:
    async with agent_process.running("node-a", short_path, kubeconfig=unreachable(short_path), gpus=gpus) as agent:
        await agent.until("Not registered with the kubelet")
        _, text = await agent.get("/readyz")
        assert f"kubelet: no kubelet listens on {short_path}/kubelet/kubelet.sock" in text


async def test_without_gpus_the_agent_does_not_start(short_path: Path, tmp_path: Path) -> None:
    async with agent_process.running(
        "node-a", short_path, kubeconfig=unreachable(short_path), gpus=tmp_path / "none"
    ) as agent:
        assert await agent.ended() == 1
        (line,) = agent.lines
        assert line["msg"] == "The agent cannot start"
        assert "nvmlInit() failed" in line["err"]


async def test_the_agent_can_wait_for_a_driver(short_path: Path, gpus: Path, tmp_path: Path) -> None:
    later = tmp_path / "later"
    more = ("--fail-on-init-error=false",)
    program = (
        "-c",
        "import sys; from deviceplugin import __main__, agent; agent.DRIVER_RETRY_SECONDS = 0.1; "
        "sys.exit(__main__.main())",
    )
    async with agent_process.running(
        "node-a", short_path, kubeconfig=unreachable(short_path), gpus=later, more=more, program=program
    ) as agent:
        await agent.until("No driver found")
        (port,) = [line["probe_port"] for line in agent.lines if line["msg"] == "Waiting for a driver"]
        status, text = await agent.ask(port, "/readyz")
        assert status == 500
        assert "driver: nvmlInit() failed" in text
        await asyncio.to_thread(gpus.rename, later)
        await agent.until("Serving")
        assert await agent.stop() == 0


async def test_an_agent_that_waits_for_a_driver_can_be_stopped(short_path: Path, tmp_path: Path) -> None:
    more = ("--fail-on-init-error=false",)
    async with agent_process.running(
        "node-a", short_path, kubeconfig=unreachable(short_path), gpus=tmp_path / "none", more=more
    ) as agent:
        await agent.until("No driver found")
        assert await agent.stop() == 0


async def test_without_its_library_the_agent_does_not_start(short_path: Path, gpus: Path) -> None:
    async with agent_process.running(
        "node-a", short_path, kubeconfig=unreachable(short_path), gpus=gpus, library=short_path / "nothing.so"
    ) as agent:
        assert await agent.ended() == 1
        assert "--library must name libgpushare.so" in agent.lines[-1]["err"]
