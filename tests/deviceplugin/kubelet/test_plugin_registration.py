"""Serving and registering over real sockets, with a small kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from deviceplugin.kubelet import plugin_registration, plugin_service, share_answers
from deviceplugin.state import advertisement
from deviceplugin.state.node_state import Observable
from gpushare import contract
from gpushare.gpunode import Gpu
from tests import builders
from tests.deviceplugin import simulated_kubelet as kubelets
from tests.deviceplugin import waiting

pytestmark = pytest.mark.slow

PERCENT, IDLE = contract.RESOURCE_PERCENT, contract.RESOURCE_IDLE
MOUNTS = share_answers.Mounts(Path("/host/lib.so"), Path("/host/ld.so.preload"), Path("/host/arbiter"))
SOCKET = "gpushare-gpu-percent.sock"


class Advertised(Observable[advertisement.Advertisement]):
    """The advertised devices of fractional GPUs."""

    def __init__(self, gpus: tuple[Gpu, ...]) -> None:
        super().__init__(advertisement.of_shares(gpus))

    def change(self, gpus: tuple[Gpu, ...]) -> None:
        self.publish(advertisement.of_shares(gpus))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_registration, "CHECK_SECONDS", 0.05)


@pytest.fixture
async def kubelet(short_path: Path) -> AsyncIterator[kubelets.Kubelet]:
    made = kubelets.Kubelet(short_path)
    await made.start()
    yield made
    await made.stop()


@contextlib.asynccontextmanager
async def registered(
    directory: Path,
    advertised: Advertised,
    resource: str = PERCENT,
    stale_devices: Callable[[str], int | None] = lambda _: None,
) -> AsyncIterator[plugin_registration.Registration]:
    served = plugin_service.ServedResource(resource, share_answers.ShareAnswers(MOUNTS, stale_devices=stale_devices))
    keeper = plugin_registration.Registration(served, advertised=advertised, directory=directory)
    task = asyncio.create_task(keeper.run())
    try:
        yield keeper
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_kubelet_gets_every_device(kubelet: kubelets.Kubelet) -> None:
    advertised = Advertised(builders.node(gpus=4).gpus)
    async with registered(kubelet.directory, advertised), registered(kubelet.directory, advertised, IDLE):
        await kubelet.until(lambda: len(kubelet.devices) == 2)
        assert len(kubelet.devices[contract.RESOURCE_PERCENT]) == 400
        assert len(kubelet.devices[contract.RESOURCE_IDLE]) == 4 * contract.IDLE_SHARES_PER_GPU
        request = next(request for request in kubelet.requests if request.resource_name == contract.RESOURCE_PERCENT)
        assert (request.version, request.endpoint) == ("v1beta1", "gpushare-gpu-percent.sock")


async def test_kubelet_gets_health_changes_immediately(kubelet: kubelets.Kubelet) -> None:
    well = builders.node(gpus=2).gpus
    ill = (dataclasses.replace(well[0], healthy=False, health_reason="lost"), well[1])
    advertised = Advertised(well)

    def unhealthy() -> int:
        return list(kubelet.devices.get(contract.RESOURCE_PERCENT, {}).values()).count("Unhealthy")

    async with registered(kubelet.directory, advertised):
        await kubelet.until(lambda: kubelet.lists == 1)
        advertised.change(well)
        advertised.change(ill)
        await kubelet.until(lambda: unhealthy() == 100)
        assert kubelet.lists == 2  # an unchanged list is not sent
        advertised.change(well)
        await kubelet.until(lambda: unhealthy() == 0)


async def test_allocate_mounts_only_library_preload_file_and_arbiter(kubelet: kubelets.Kubelet) -> None:
    async with registered(kubelet.directory, Advertised(builders.node(gpus=1).gpus)):
        await kubelet.until(lambda: kubelet.lists == 1)
        answer = await kubelet.allocate(
            contract.RESOURCE_PERCENT, ["gpu-percent-0", "gpu-percent-99"], ["gpu-percent-7"]
        )
        assert len(answer.container_responses) == 2
        for container in answer.container_responses:
            assert [(mount.container_path, mount.host_path, mount.read_only) for mount in container.mounts] == [
                ("/usr/lib/gpushare/libgpushare.so", "/host/lib.so", True),
                ("/etc/ld.so.preload", "/host/ld.so.preload", True),
                ("/etc/ld-nix.so.preload", "/host/ld.so.preload", True),
                ("/run/gpushare", "/host/arbiter", True),
            ]
            assert not container.envs
            assert not container.devices
            assert not container.annotations


async def test_allocate_accepts_an_id_that_was_just_withdrawn(kubelet: kubelets.Kubelet) -> None:
    async with registered(kubelet.directory, Advertised(builders.node(gpus=1).gpus)):
        await kubelet.until(lambda: kubelet.lists == 1)
        answer = await kubelet.allocate(contract.RESOURCE_PERCENT, ["gpu-percent-127", "GPU-6f127b1c::3"])
        assert len(answer.container_responses[0].mounts) == 4


async def test_registers_again_after_each_kubelet_restart(kubelet: kubelets.Kubelet) -> None:
    advertised = Advertised(builders.node(gpus=1).gpus)
    async with registered(kubelet.directory, advertised) as keeper:
        await kubelet.until(lambda: kubelet.lists == 1)
        for restart in range(1, 6):
            await kubelet.stop()
            await kubelet.start()  # the plugin's socket is gone as well
            await kubelet.until(lambda seen=restart: kubelet.lists == seen + 1)
        assert len(kubelet.requests) == 6
        assert keeper.problem == ""
        assert (kubelet.directory / SOCKET).is_socket()


async def test_starting_kubelet_gets_additional_devices_for_stale_ones(
    kubelet: kubelets.Kubelet,
) -> None:
    left: list[int | None] = [0]

    def healthy() -> int:
        return list(kubelet.devices.get(PERCENT, {}).values()).count("Healthy")

    async with registered(kubelet.directory, Advertised(builders.node(gpus=1).gpus), stale_devices=lambda _: left[0]):
        await kubelet.until(lambda: healthy() == 100)
        for count in (30, 70):  # as the agent learns of the pods
            left[0] = count
            await kubelet.until(lambda seen=count: healthy() == 100 + seen)
        left[0] = None
        await kubelet.until(lambda: healthy() == 100)
        assert len(kubelet.devices[PERCENT]) == 170  # the kubelet may have just chosen one of them
        lists = kubelet.lists
        left[0] = 30
        await asyncio.sleep(plugin_service.STARTING_POLL_SECONDS * 4)
        assert kubelet.lists == lists
    empty = Advertised(())
    async with registered(kubelet.directory, empty, stale_devices=lambda _: 30):
        await kubelet.until(lambda: kubelet.lists == lists + 1)
        assert kubelet.devices[PERCENT] == {}  # a resource without devices gets none


async def test_serves_again_if_only_its_own_socket_is_removed(kubelet: kubelets.Kubelet) -> None:
    async with registered(kubelet.directory, Advertised(builders.node(gpus=1).gpus)):
        await kubelet.until(lambda: kubelet.lists == 1)
        (kubelet.directory / SOCKET).unlink()
        await kubelet.until(lambda: kubelet.lists == 2)
        assert (kubelet.directory / SOCKET).is_socket()


async def test_registers_again_when_the_kubelet_drops_the_stream(
    kubelet: kubelets.Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_registration, "DROPPED_SECONDS", 0.5)
    async with registered(kubelet.directory, Advertised(builders.node(gpus=1).gpus)):
        await kubelet.until(lambda: kubelet.lists == 1)
        await kubelet.drop(contract.RESOURCE_PERCENT)
        await kubelet.until(lambda: kubelet.lists == 2)


async def test_reports_a_kubelet_that_keeps_closing_the_stream(
    kubelet: kubelets.Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_registration, "DROPPED_SECONDS", 0.1)
    async with registered(kubelet.directory, Advertised(builders.node(gpus=1).gpus)) as keeper:
        for number in range(1, plugin_registration.MAX_HANGUPS + 1):
            await kubelet.until(lambda number=number: kubelet.lists == number)
            assert not keeper.hung_up
            await kubelet.drop(PERCENT)
        await waiting.until(lambda: bool(keeper.hung_up))
        assert keeper.hung_up.startswith(f"the kubelet closes the stream when it gets the 100 devices of {PERCENT}: ")
        await waiting.until(lambda: keeper.problem == keeper.hung_up)
        monkeypatch.setattr(plugin_registration, "STEADY_SECONDS", 0.1)  # the stream stays open now
        await waiting.until(lambda: not keeper.problem)
        assert not keeper.hung_up


async def test_frequent_kubelet_restarts_are_not_hangups(kubelet: kubelets.Kubelet) -> None:
    async with registered(kubelet.directory, Advertised(builders.node(gpus=1).gpus)) as keeper:
        for number in range(1, plugin_registration.MAX_HANGUPS + 3):
            await kubelet.until(lambda number=number: kubelet.lists == number)
            await kubelet.stop()
            await kubelet.start()
        await waiting.until(lambda: not keeper.problem)
        assert not keeper.hung_up


async def test_waits_for_a_slow_first_list_call(kubelet: kubelets.Kubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_registration, "DROPPED_SECONDS", 0.1)
    async with registered(kubelet.directory, Advertised(builders.node(gpus=1).gpus)):
        await kubelet.until(lambda: kubelet.lists == 1)
        kubelet.is_deaf = True
        await kubelet.drop(PERCENT)
        await kubelet.until(lambda: len(kubelet.requests) == 2)
        await asyncio.sleep(10 * plugin_registration.CHECK_SECONDS)
        assert len(kubelet.requests) == 2
        monkeypatch.setattr(plugin_registration, "SILENT_SECONDS", 0.1)
        await kubelet.until(lambda: len(kubelet.requests) > 2)


async def test_second_agent_keeps_its_registration_when_the_first_ends(kubelet: kubelets.Kubelet) -> None:
    advertised = Advertised(builders.node(gpus=1).gpus)
    async with contextlib.AsyncExitStack() as both:
        async with registered(kubelet.directory, advertised) as first:
            await kubelet.until(lambda: kubelet.lists == 1)
            second = await both.enter_async_context(registered(kubelet.directory, advertised))
            await waiting.until(lambda: "another agent on this node listens on" in first.problem)
            await waiting.until(lambda: not second.problem)
            served = (kubelet.directory / SOCKET).stat().st_ino
        await asyncio.sleep(10 * plugin_registration.CHECK_SECONDS)
        assert (kubelet.directory / SOCKET).stat().st_ino == served
        assert len(kubelet.requests) == 2


async def test_registers_again_after_a_change_of_the_sockets_mode(kubelet: kubelets.Kubelet) -> None:
    async with registered(kubelet.directory, Advertised(builders.node(gpus=1).gpus)) as keeper:
        await kubelet.until(lambda: kubelet.lists == 1)
        (kubelet.directory / SOCKET).chmod(0o600)
        await kubelet.until(lambda: kubelet.lists == 2)
        assert keeper.problem == ""


async def test_first_agent_registers_again_after_the_second_ends(
    kubelet: kubelets.Kubelet,
) -> None:
    advertised = Advertised(builders.node(gpus=1).gpus)
    async with registered(kubelet.directory, advertised) as first:
        await kubelet.until(lambda: len(kubelet.requests) == 1)
        async with registered(kubelet.directory, advertised) as second:
            await waiting.until(lambda: "another agent on this node listens on" in first.problem)
            await waiting.until(lambda: not second.problem)
            served = (kubelet.directory / SOCKET).stat().st_ino
            await asyncio.sleep(10 * plugin_registration.CHECK_SECONDS)
            assert len(kubelet.requests) == 2
            assert (kubelet.directory / SOCKET).stat().st_ino == served
        await waiting.until(lambda: not first.problem)
        assert len(kubelet.requests) == 3


async def test_replaces_a_dead_socket(kubelet: kubelets.Kubelet) -> None:
    async with registered(kubelet.directory, Advertised(builders.node(gpus=1).gpus)):
        await kubelet.until(lambda: kubelet.lists == 1)
        (kubelet.directory / SOCKET).unlink()
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(kubelet.directory / SOCKET))
        await kubelet.until(lambda: kubelet.lists == 2)


async def test_waits_for_a_missing_kubelet_and_reports_it(short_path: Path) -> None:
    async with registered(short_path, Advertised(builders.node(gpus=1).gpus)) as keeper:
        await waiting.until(lambda: "no kubelet listens on" in keeper.problem)
        assert keeper.problem == (
            f"no kubelet listens on {short_path}/kubelet.sock: it is stopped, or --kubelet-directory is wrong"
        )
        late = kubelets.Kubelet(short_path)
        await late.start()
        await late.until(lambda: late.lists == 1)
        await waiting.until(lambda: not keeper.problem)
        await late.stop()


async def test_retries_a_refused_registration_and_reports_the_reason(
    kubelet: kubelets.Kubelet,
) -> None:
    kubelet.refusal = "no such version here"
    async with registered(kubelet.directory, Advertised(builders.node(gpus=1).gpus)) as keeper:
        await waiting.until(lambda: "no such version here" in keeper.problem)
        kubelet.refusal = ""
        await kubelet.until(lambda: kubelet.lists == 1)


async def test_removes_its_socket_at_the_end(kubelet: kubelets.Kubelet) -> None:
    async with registered(kubelet.directory, Advertised(builders.node(gpus=1).gpus)):
        await kubelet.until(lambda: kubelet.lists == 1)
    assert not (kubelet.directory / SOCKET).exists()
