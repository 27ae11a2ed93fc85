"""The Events of a GPU that fails and recovers, and of pods with a refused library."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from deviceplugin.host.kernel_process import Container
from deviceplugin.report import announcements
from deviceplugin.report.announcements import RefusedLibraries
from deviceplugin.state.node_state import Observable, ObservableGpus, Unreadable
from deviceplugin.state.pod_resources import ContainerDevices
from gpushare import contract, ledger
from tests import builders
from tests.deviceplugin import waiting

WELL = builders.node(gpus=2).gpus
ILL = (dataclasses.replace(WELL[0], healthy=False, health_reason="XID 79 happened: the GPU has to be reset"), WELL[1])


def test_unchanged_gpus_are_not_announced() -> None:
    assert announcements.notes((), WELL) == ()
    assert announcements.notes(ILL, ILL) == ()


def test_a_failure_and_a_recovery_are_announced_with_the_reason() -> None:
    (failed,) = announcements.notes(WELL, ILL)
    assert (failed.reason, failed.warning) == (contract.EVENT_GPU_UNHEALTHY, True)
    assert failed.sentence == f"GPU 0 ({WELL[0].uuid}) is not healthy: XID 79 happened: the GPU has to be reset"
    (returned,) = announcements.notes(ILL, WELL)
    assert (returned.reason, returned.sentence) == (
        contract.EVENT_GPU_HEALTHY,
        f"GPU 0 ({WELL[0].uuid}) is healthy again",
    )


def test_a_gpu_that_is_unhealthy_at_the_start_is_announced() -> None:
    assert [note.reason for note in announcements.notes((), ILL)] == [contract.EVENT_GPU_UNHEALTHY]


def test_an_unreadable_gpu_is_announced_once() -> None:
    unread = (Unreadable(1, "GPU is lost"),)
    (note,) = announcements.notes_of_unread((), unread)
    assert (note.reason, note.warning) == (contract.EVENT_GPU_UNHEALTHY, True)
    assert note.sentence == "GPU 1 does not answer: GPU is lost"
    assert announcements.notes_of_unread(unread, (Unreadable(1, "Unknown Error"),)) == ()
    assert announcements.affected(note.gpu, builders.node(gpus=2), (), {}) == ()


def test_each_gpu_that_only_the_kernel_lists_is_announced() -> None:
    one, other = (
        Unreadable(None, "the driver does not list it", bus_id) for bus_id in ("0000:0a:00.0", "0000:0b:00.0")
    )
    for before in (one, Unreadable(None, "Driver Not Loaded")):
        (note,) = announcements.notes_of_unread((before,), (before, other))
        assert note.sentence == "GPU 0000:0b:00.0 does not answer: the driver does not list it"


def test_pods_from_ledger_and_kubelet_are_listed_once() -> None:
    node = ledger.reserve(builders.node(gpus=2), builders.allocation("a", WELL[0].uuid))
    held = [
        ContainerDevices("ml", "whole", "main", "nvidia.com/gpu", (WELL[0].uuid,)),
        ContainerDevices("ml", "whole", "side", "nvidia.com/gpu", (f"{WELL[0].uuid}::1",)),
        ContainerDevices("ml", "other", "main", "nvidia.com/gpu", (WELL[1].uuid,)),
        ContainerDevices("ml", "share", "main", contract.RESOURCE_PERCENT, (f"{WELL[0].uuid}::1",)),  # a counter
    ]
    gpu_of = {gpu.uuid: gpu.uuid for gpu in WELL}
    pods = announcements.affected(WELL[0].uuid, node, held, gpu_of)
    assert pods == (("default", "trainer"), ("ml", "whole"))


(NOTE,) = announcements.notes(WELL, ILL)


class Teller:
    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def record(self, reason: str, note: str, *, warning: bool = False) -> None:
        assert (note, warning) == (NOTE.sentence, NOTE.warning)
        self.told.append(("the GPUNode", reason))

    def record_for_pod(self, _: str, name: str, reason: str, note: str, *, warning: bool = False) -> None:
        assert (note, warning) == (NOTE.sentence, NOTE.warning)
        self.told.append((name, reason))


def test_the_gpunode_and_each_pod_get_the_same_event() -> None:
    teller = Teller()
    announcements.announce(
        announcements.notes(WELL, ILL),
        teller,
        pods=lambda _: [("ml", "whole"), ("ml", "other")],
    )
    reason = contract.EVENT_GPU_UNHEALTHY
    assert teller.told == [("the GPUNode", reason), ("whole", reason), ("other", reason)]


class Told:
    """The GPUNode's Events. No pod uses a GPU."""

    held = ()

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def record(self, _: str, note: str, *, warning: bool = False) -> None:  # noqa: ARG002 - as NodeEvents
        self.sentences.append(note)

    async def refresh(self) -> None:
        pass


async def test_changes_are_announced_for_gpus_with_and_without_uuid() -> None:
    told, gpus, unread = (
        Told(),
        ObservableGpus(WELL),
        Observable[tuple[Unreadable, ...]]((Unreadable(2, "GPU is lost"),)),
    )
    announcer = announcements.HealthAnnouncer(
        told, told, gpus=gpus, unread=unread, node=lambda: builders.node(gpus=2), gpu_of=dict
    )
    running = asyncio.create_task(announcer.run())
    await waiting.until(lambda: told.sentences == ["GPU 2 does not answer: GPU is lost"])
    gpus.publish(ILL)
    await waiting.until(lambda: len(told.sentences) == 2)
    unread.publish(())
    unread.publish((Unreadable(2, "GPU is lost"), Unreadable(3, "Unknown Error")))
    await waiting.until(lambda: len(told.sentences) == 3)
    assert told.sentences[2] == "GPU 3 does not answer: Unknown Error"
    running.cancel()


def manifest(name: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "ml", "name": name, "uid": f"uid-{name}"}}


def test_a_refused_library_is_announced_once_per_pod() -> None:
    pods: list[dict[str, Any]] = []
    events: list[tuple[str, str, tuple[str, str] | None]] = []
    unspoken = RefusedLibraries(lambda: pods, lambda *event: events.append(event))
    unspoken.refused(Container("uid-a", "id"), "recreate the pod")
    assert events == []  # the pod is unknown
    pods += [manifest("a"), manifest("b")]
    for _ in range(3):
        unspoken.refused(Container("uid-a", "id"), "recreate the pod")
        unspoken.refused(Container("uid-a", "id of its sidecar"), "recreate the pod")
    assert events == [("LibraryRefused", "recreate the pod", ("ml", "a"))]
    pods.remove(manifest("a"))
    unspoken.refused(Container("uid-b", "id"), "recreate it")
    assert events[1:] == [("LibraryRefused", "recreate it", ("ml", "b"))]
    pods.append(manifest("a"))
    unspoken.refused(Container("uid-a", "id"), "recreate it again")
    assert events[2:] == [("LibraryRefused", "recreate it again", ("ml", "a"))]  # deleted pods are forgotten
