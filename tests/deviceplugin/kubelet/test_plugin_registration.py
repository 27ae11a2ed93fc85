"""Serving and registering, over real sockets, with a small kubelet."""

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
from deviceplugin.state.offer import Observable
from gpushare import contract
from gpushare.gpu import Gpu
from tests import builders
from tests.deviceplugin import simulated_kubelet as kubelets
from tests.deviceplugin import waiting

pytestmark = pytest.mark.slow

PERCENT, IDLE = contract.RESOURCE_PERCENT, contract.RESOURCE_IDLE
MOUNTS = share_answers.Mounts(Path("/host/lib.so"), Path("/host/ld.so.preload"), Path("/host/arbiter"))
SOCKET = "gpushare-gpu-percent.sock"


class Told(Observable[advertisement.Advertisement]):
    """What the kubelet is told of fractional GPUs."""

    def __init__(self, gpus: tuple[Gpu, ...]) -> None:
        super().__init__(advertisement.of_shares(gpus))

    def say(self, gpus: tuple[Gpu, ...]) -> None:
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
    directory: Path, offer: Told, resource: str = PERCENT, stale_devices: Callable[[str], int | None] = lambda _: None
) -> AsyncIterator[plugin_registration.Registration]:
    served = plugin_service.ServedResource(resource, share_answers.ShareAnswers(MOUNTS, stale_devices=stale_devices))
    keeper = plugin_registration.Registration(served, advertised=offer, directory=directory)
    task = asyncio.create_task(keeper.run())
    try:
        yield keeper
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_the_kubelet_is_told_every_device(kubelet: kubelets.Kubelet) -> None:
    offer = Told(builders.node(gpus=4).gpus)
    async with registered(kubelet.directory, offer), registered(kubelet.directory, offer, IDLE):
        await kubelet.until(lambda: len(kubelet.devices) == 2)
        assert len(kubelet.devices[contract.RESOURCE_PERCENT]) == 400
        assert len(kubelet.devices[contract.RESOURCE_IDLE]) == 4 * contract.IDLE_SHARES_PER_GPU
        request = next(request for request in kubelet.requests if request.resource_name == contract.RESOURCE_PERCENT)
        assert (request.version, request.endpoint) == ("v1beta1", "gpushare-gpu-percent.sock")


async def test_a_change_of_health_is_told_at_once_and_told_back(kubelet: kubelets.Kubelet) -> None:
    well = builders.node(gpus=2).gpus
    ill = (dataclasses.replace(well[0], healthy=False, health_reason="lost"), well[1])
    offer = Told(well)

    def unhealthy() -> int:
        return list(kubelet.devices.get(contract.RESOURCE_PERCENT, {}).values()).count("Unhealthy")

    async with registered(kubelet.directory, offer):
        await kubelet.until(lambda: kubelet.lists == 1)
        offer.say(well)
        offer.say(ill)
        await kubelet.until(lambda: unhealthy() == 100)
        assert kubelet.lists == 2  # an offer that is no news was not told
        offer.say(well)
        await kubelet.until(lambda: unhealthy() == 0)


async def test_allocate_mounts_library_preload_file_and_arbiter_and_nothing_else(kubelet: kubelets.Kubelet) -> None:
    async with registered(kubelet.directory, Told(builders.node(gpus=1).gpus)):
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


async def test_an_id_that_was_withdrawn_while_the_kubelet_chose_it_is_as_good_as_any(kubelet: kubelets.Kubelet) -> None:
    async with registered(kubelet.directory, Told(builders.node(gpus=1).gpus)):
        await kubelet.until(lambda: kubelet.lists == 1)
        answer = await kubelet.allocate(contract.RESOURCE_PERCENT, ["gpu-percent-127", "GPU-6f127b1c::3"])
        assert len(answer.container_responses[0].mounts) == 4


async def test_it_registers_again_each_time_the_kubelet_restarts(kubelet: kubelets.Kubelet) -> None:
    offer = Told(builders.node(gpus=1).gpus)
    async with registered(kubelet.directory, offer) as keeper:
        await kubelet.until(lambda: kubelet.lists == 1)
        for restart in range(1, 6):
            await kubelet.stop()
            await kubelet.start()  # the plugin's socket is gone too
            await kubelet.until(lambda seen=restart: kubelet.lists == seen + 1)
        assert len(kubelet.requests) == 6
        assert keeper.problem == ""
        assert (kubelet.directory / SOCKET).is_socket()


async def test_a_kubelet_that_starts_is_told_of_others_in_the_place_of_those_that_pods_left_behind(
    kubelet: kubelets.Kubelet,
) -> None:
    left: list[int | None] = [0]

    def healthy() -> int:
        return list(kubelet.devices.get(PERCENT, {}).values()).count("Healthy")

    async with registered(kubelet.directory, Told(builders.node(gpus=1).gpus), stale_devices=lambda _: left[0]):
        await kubelet.until(lambda: healthy() == 100)
        for count in (30, 70):  # as the agent hears of it
            left[0] = count
            await kubelet.until(lambda seen=count: healthy() == 100 + seen)
        left[0] = None
        await kubelet.until(lambda: healthy() == 100)
        assert len(kubelet.devices[PERCENT]) == 170  # it may have chosen one of them just now
        lists = kubelet.lists
        left[0] = 30
        await asyncio.sleep(plugin_service.STARTING_POLL_SECONDS * 4)
        assert kubelet.lists == lists
    empty = Told(())
    async with registered(kubelet.directory, empty, stale_devices=lambda _: 30):
        await kubelet.until(lambda: kubelet.lists == lists + 1)
        assert kubelet.devices[PERCENT] == {}  # not of what it has none of


async def test_it_serves_again_when_only_its_own_socket_is_removed(kubelet: kubelets.Kubelet) -> None:
    async with registered(kubelet.directory, Told(builders.node(gpus=1).gpus)):
        await kubelet.until(lambda: kubelet.lists == 1)
        (kubelet.directory / SOCKET).unlink()
        await kubelet.until(lambda: kubelet.lists == 2)
        assert (kubelet.directory / SOCKET).is_socket()


async def test_it_registers_again_when_the_kubelet_stops_listening(
    kubelet: kubelets.Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_registration, "DROPPED_SECONDS", 0.5)
    async with registered(kubelet.directory, Told(builders.node(gpus=1).gpus)):
        await kubelet.until(lambda: kubelet.lists == 1)
        await kubelet.drop(contract.RESOURCE_PERCENT)
        await kubelet.until(lambda: kubelet.lists == 2)


async def test_a_kubelet_that_hangs_up_again_and_again_is_told(
    kubelet: kubelets.Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_registration, "DROPPED_SECONDS", 0.1)
    async with registered(kubelet.directory, Told(builders.node(gpus=1).gpus)) as keeper:
        for number in range(1, plugin_registration.MAX_HANGUPS + 1):
            await kubelet.until(lambda number=number: kubelet.lists == number)
            assert not keeper.hung_up
            await kubelet.drop(PERCENT)
        await waiting.until(lambda: bool(keeper.hung_up))
        assert keeper.hung_up.startswith(f"the kubelet closes the stream when it gets the 100 devices of {PERCENT}: ")
        await waiting.until(lambda: keeper.problem == keeper.hung_up)
        monkeypatch.setattr(plugin_registration, "STEADY_SECONDS", 0.1)  # it listens now
        await waiting.until(lambda: not keeper.problem)
        assert not keeper.hung_up


async def test_a_kubelet_that_restarts_often_does_not_hang_up(kubelet: kubelets.Kubelet) -> None:
    async with registered(kubelet.directory, Told(builders.node(gpus=1).gpus)) as keeper:
        for number in range(1, plugin_registration.MAX_HANGUPS + 3):
            await kubelet.until(lambda number=number: kubelet.lists == number)
            await kubelet.stop()
            await kubelet.start()
        await waiting.until(lambda: not keeper.problem)
        assert not keeper.hung_up


async def test_a_kubelet_that_has_yet_to_ask_for_the_list_is_given_time(
    kubelet: kubelets.Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_registration, "DROPPED_SECONDS", 0.1)
    async with registered(kubelet.directory, Told(builders.node(gpus=1).gpus)):
        await kubelet.until(lambda: kubelet.lists == 1)
        kubelet.is_deaf = True
        await kubelet.drop(PERCENT)
        await kubelet.until(lambda: len(kubelet.requests) == 2)
        await asyncio.sleep(10 * plugin_registration.CHECK_SECONDS)
        assert len(kubelet.requests) == 2
        monkeypatch.setattr(plugin_registration, "SILENT_SECONDS", 0.1)
        await kubelet.until(lambda: len(kubelet.requests) > 2)


async def test_who_comes_later_keeps_the_kubelet_when_the_first_one_ends(kubelet: kubelets.Kubelet) -> None:
    offer = Told(builders.node(gpus=1).gpus)
    async with contextlib.AsyncExitStack() as both:
        async with registered(kubelet.directory, offer) as first:
            await kubelet.until(lambda: kubelet.lists == 1)
            second = await both.enter_async_context(registered(kubelet.directory, offer))
            await waiting.until(lambda: "another agent on this node listens on" in first.problem)
            await waiting.until(lambda: not second.problem)
            served = (kubelet.directory / SOCKET).stat().st_ino
        await asyncio.sleep(10 * plugin_registration.CHECK_SECONDS)
        assert (kubelet.directory / SOCKET).stat().st_ino == served
        assert len(kubelet.requests) == 2


async def test_rights_of_its_socket_may_be_changed(kubelet: kubelets.Kubelet) -> None:
    async with registered(kubelet.directory, Told(builders.node(gpus=1).gpus)) as keeper:
        await kubelet.until(lambda: kubelet.lists == 1)
        (kubelet.directory / SOCKET).chmod(0o600)
        await kubelet.until(lambda: kubelet.lists == 2)
        assert keeper.problem == ""


async def test_who_comes_later_has_the_kubelet_and_who_came_first_again_when_it_has_gone(
    kubelet: kubelets.Kubelet,
) -> None:
    offer = Told(builders.node(gpus=1).gpus)
    async with registered(kubelet.directory, offer) as first:
        await kubelet.until(lambda: len(kubelet.requests) == 1)
        async with registered(kubelet.directory, offer) as second:
            await waiting.until(lambda: "another agent on this node listens on" in first.problem)
            await waiting.until(lambda: not second.problem)
            served = (kubelet.directory / SOCKET).stat().st_ino
            await asyncio.sleep(10 * plugin_registration.CHECK_SECONDS)
            assert len(kubelet.requests) == 2
            assert (kubelet.directory / SOCKET).stat().st_ino == served
        await waiting.until(lambda: not first.problem)
        assert len(kubelet.requests) == 3


async def test_a_socket_that_somebody_has_left_behind_is_replaced(kubelet: kubelets.Kubelet) -> None:
    async with registered(kubelet.directory, Told(builders.node(gpus=1).gpus)):
        await kubelet.until(lambda: kubelet.lists == 1)
        (kubelet.directory / SOCKET).unlink()
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(kubelet.directory / SOCKET))
        await kubelet.until(lambda: kubelet.lists == 2)


async def test_without_a_kubelet_it_waits_and_says_so(short_path: Path) -> None:
    async with registered(short_path, Told(builders.node(gpus=1).gpus)) as keeper:
        await waiting.until(lambda: "no kubelet listens on" in keeper.problem)
        assert keeper.problem == (
            f"no kubelet listens on {short_path}/kubelet.sock: it is stopped, or --kubelet-directory is wrong"
        )
        late = kubelets.Kubelet(short_path)
        await late.start()
        await late.until(lambda: late.lists == 1)
        await waiting.until(lambda: not keeper.problem)
        await late.stop()


async def test_a_refused_registration_is_tried_again_and_the_kubelets_reason_is_told(
    kubelet: kubelets.Kubelet,
) -> None:
    kubelet.refusal = "no such version here"
    async with registered(kubelet.directory, Told(builders.node(gpus=1).gpus)) as keeper:
        await waiting.until(lambda: "no such version here" in keeper.problem)
        kubelet.refusal = ""
        await kubelet.until(lambda: kubelet.lists == 1)


async def test_when_it_ends_its_socket_is_gone(kubelet: kubelets.Kubelet) -> None:
    async with registered(kubelet.directory, Told(builders.node(gpus=1).gpus)):
        await kubelet.until(lambda: kubelet.lists == 1)
    assert not (kubelet.directory / SOCKET).exists()
