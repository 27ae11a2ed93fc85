"""One plugin per resource: each starts, changes and stops while the others serve."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin.kubelet import plugin_registration, plugin_service, share_answers
from deviceplugin.state import advertisement
from deviceplugin.state.node_state import Observable
from tests.deviceplugin import simulated_kubelet as kubelets
from tests.deviceplugin import waiting

pytestmark = pytest.mark.slow

MOUNTS = share_answers.Mounts(Path("/host/lib.so"), Path("/host/ld.so.preload"), Path("/host/arbiter"))
Advertised = Observable[advertisement.Advertisement]


def some(count: int, *, name: str = "GPU-a") -> tuple[advertisement.AdvertisedDevice, ...]:
    return tuple(advertisement.AdvertisedDevice(f"{name}::{number}", True, 1) for number in range(count))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_registration, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(plugin_service, "REMOVAL_SECONDS", 0.1)


@pytest.fixture
async def kubelet(short_path: Path) -> AsyncIterator[kubelets.Kubelet]:
    (short_path / "plugins").mkdir()
    made = kubelets.Kubelet(short_path / "plugins")
    await made.start()
    yield made
    await made.stop()


@contextlib.asynccontextmanager
async def serving(
    kubelet: kubelets.Kubelet,
    advertised: Advertised,
    *,
    registered: Observable[frozenset[str]] | None = None,
    empty_seconds: float = 0.3,
) -> AsyncIterator[plugin_registration.Plugins]:
    answers = share_answers.ShareAnswers(MOUNTS)
    made = plugin_registration.Plugins(
        advertised,
        answers=lambda _: answers,
        directory=kubelet.directory,
        registered=registered or Observable(frozenset()),
        empty_seconds=empty_seconds,
    )
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_resources_start_and_stop_independently(kubelet: kubelets.Kubelet) -> None:
    advertised: Advertised = Observable({"nvidia.com/gpu": some(2)})
    async with serving(kubelet, advertised) as made:
        await kubelet.until(lambda: len(kubelet.devices.get("nvidia.com/gpu", ())) == 2)
        advertised.publish({"nvidia.com/gpu": some(2), "nvidia.com/gpu.shared": some(8)})
        await kubelet.until(lambda: len(kubelet.devices.get("nvidia.com/gpu.shared", ())) == 8)
        await waiting.until(lambda: not made.problem)
        advertised.publish({"nvidia.com/gpu": some(2)})
        # First all devices are unhealthy; then the list is empty, so that no capacity remains; then the socket is gone.
        await kubelet.until(lambda: {*kubelet.devices["nvidia.com/gpu.shared"].values()} == {"Unhealthy"})
        await kubelet.until(lambda: not kubelet.devices["nvidia.com/gpu.shared"])
        socket = kubelet.directory / advertisement.socket_name("nvidia.com/gpu.shared")
        await waiting.until(lambda: not socket.exists())
        assert kubelet.lists == 4
        assert [request.resource_name for request in kubelet.requests] == ["nvidia.com/gpu", "nvidia.com/gpu.shared"]


async def test_publishes_the_registered_resources(kubelet: kubelets.Kubelet) -> None:
    advertised: Advertised = Observable({"nvidia.com/gpu": some(2), "nvidia.com/gpu.shared": some(8)})
    registered: Observable[frozenset[str]] = Observable(frozenset())
    async with serving(kubelet, advertised, registered=registered):
        await waiting.until(lambda: registered.value == {"nvidia.com/gpu", "nvidia.com/gpu.shared"})
        await kubelet.stop()
        await waiting.until(lambda: registered.value == frozenset())
        await kubelet.start()
        await waiting.until(lambda: len(registered.value) == 2)
        advertised.publish({"nvidia.com/gpu": some(2)})
        await waiting.until(lambda: registered.value == {"nvidia.com/gpu"})


async def test_resource_that_returns_in_time_keeps_its_registration(kubelet: kubelets.Kubelet) -> None:
    advertised: Advertised = Observable({"nvidia.com/gpu": some(2)})
    async with serving(kubelet, advertised, empty_seconds=3.0):
        await kubelet.until(lambda: kubelet.lists == 1)
        advertised.publish({})
        await kubelet.until(lambda: not kubelet.devices["nvidia.com/gpu"])
        advertised.publish({"nvidia.com/gpu": some(3)})
        await kubelet.until(lambda: len(kubelet.devices["nvidia.com/gpu"]) == 3)
        await asyncio.sleep(3.5)  # longer than until its removal
        assert len(kubelet.requests) == 1


async def test_removed_device_stays_listed_as_unhealthy_for_a_while(
    kubelet: kubelets.Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_service, "REMOVAL_SECONDS", 2.0)
    advertised: Advertised = Observable({"nvidia.com/gpu": some(2)})
    async with serving(kubelet, advertised):
        await kubelet.until(lambda: kubelet.lists == 1)
        advertised.publish({"nvidia.com/gpu": some(1)})
        await kubelet.until(lambda: kubelet.lists == 2)
        assert kubelet.devices["nvidia.com/gpu"] == {"GPU-a::0": "Healthy", "GPU-a::1": "Unhealthy"}
        assert kubelet.numa["GPU-a::1"] == 1
        advertised.publish({"nvidia.com/gpu": some(2)})  # the device returns
        await kubelet.until(lambda: kubelet.lists == 3)
        assert {*kubelet.devices["nvidia.com/gpu"].values()} == {"Healthy"}
        advertised.publish({"nvidia.com/gpu": some(1)})
        await kubelet.until(lambda: kubelet.devices["nvidia.com/gpu"] == {"GPU-a::0": "Healthy"})
        assert kubelet.lists == 5


async def test_lists_thousands_of_devices_with_numa_nodes(kubelet: kubelets.Kubelet) -> None:
    advertised: Advertised = Observable(
        {"nvidia.com/gpu": some(10_000, name="GPU-6f127b1c-5d35-4a4c-9f2e-0123456789ab")}
    )
    async with serving(kubelet, advertised):
        await kubelet.until(lambda: len(kubelet.devices.get("nvidia.com/gpu", ())) == 10_000)
        assert set(kubelet.numa.values()) == {1}


async def test_all_resources_register_again_after_a_kubelet_restart(kubelet: kubelets.Kubelet) -> None:
    advertised: Advertised = Observable(
        {name: some(2) for name in ("nvidia.com/gpu", "nvidia.com/gpu.shared", "example.com/other")}
    )
    async with serving(kubelet, advertised):
        await kubelet.until(lambda: kubelet.lists == 3)
        await kubelet.stop()
        await kubelet.start()
        await kubelet.until(lambda: kubelet.lists == 6)
    assert [path.name for path in kubelet.directory.iterdir()] == ["kubelet.sock"]


async def test_notices_a_new_kubelet_between_two_checks(
    kubelet: kubelets.Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet decides about its pods within a second, so a plugin that registers at the next check would be too
    late.
    """
    monkeypatch.setattr(plugin_registration, "CHECK_SECONDS", 3600.0)
    advertised: Advertised = Observable({"nvidia.com/gpu": some(2), "nvidia.com/gpu.shared": some(8)})
    async with serving(kubelet, advertised):
        await kubelet.until(lambda: kubelet.lists == 2)
        for restart in range(1, 4):
            await kubelet.stop()
            await kubelet.start()
            await kubelet.until(lambda seen=restart: kubelet.lists == 2 * (seen + 1))  # type: ignore[misc]
