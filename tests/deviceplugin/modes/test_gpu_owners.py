"""The owner of a GPU of another device plugin, by the kubelet, and before the kubelet has answered."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import subprocess
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from deviceplugin.host.kernel_process import Container
from deviceplugin.modes import gpu_owners
from deviceplugin.modes.gpu_owners import GpuOwners, Owners, owners
from deviceplugin.state.node_state import Observable
from deviceplugin.state.pod_resources import ContainerDevices, PodResourcesError
from gpushare import borrowing, contract
from gpushare.gpunode import GpuNode
from gpushare.refusal import Refusal
from tests import builders

A, B = "GPU-a", "GPU-b"


def held(name: str, device: str, *, namespace: str = contract.BORROW_NAMESPACE) -> ContainerDevices:
    return ContainerDevices(namespace, name, "placeholder", contract.BORROWED_RESOURCE, (device,))


def kernel_process_of(pid: int) -> Container | Refusal:
    """Say that no process is in a pod."""
    return Refusal(f"{pid} is in no pod")


async def none(uuids: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Say that no GPU has a process."""
    return dict.fromkeys(uuids, ())


def placeholder(name: str, *, phase: str = "Running") -> dict[str, Any]:
    made = builders.pod(name, uid=f"uid-{name}")
    made["metadata"]["namespace"] = contract.BORROW_NAMESPACE
    return {**made, "status": {"phase": phase}}


def test_a_gpu_belongs_to_the_living_placeholder_that_has_it() -> None:
    pods = [placeholder("p1"), placeholder("p2", phase="Failed")]

    def of(*devices: ContainerDevices) -> Owners:
        return owners(devices, pods, (A, B))

    assert of(held("p1", A), held("p2", B)) == {A: "uid-p1", B: contract.OTHER_OWNER}
    assert of(held("p1", A, namespace="default")) == {A: contract.OTHER_OWNER, B: contract.OTHER_OWNER}
    assert of(held("unknown", A))[A] == contract.OTHER_OWNER
    assert of(held("p1", f"{A}::0"))[A] == contract.OTHER_OWNER  # a replica is no GPU


async def test_owners_are_kept_while_the_kubelet_does_not_answer() -> None:
    answers: list[Sequence[ContainerDevices]] = []

    async def ask() -> Sequence[ContainerDevices]:
        if not answers:
            raise PodResourcesError("it is stopped")
        return answers.pop()

    before = builders.node(gpus=1)
    gpu = dataclasses.replace(before.gpus[0], uuid=A, owner="uid-before")
    known = GpuOwners(
        Observable(None),
        is_borrowing=lambda: True,
        held=ask,
        pods=lambda: [placeholder("p1")],
        uuids=lambda: (A, B),
        identify=kernel_process_of,
        processes=none,
        node=lambda: dataclasses.replace(before, gpus=(gpu,)),
        wake=asyncio.Event(),
    )
    await known.step()
    assert (known.of(A), known.of(B)) == ("uid-before", contract.OTHER_OWNER)  # as the GPUNode says
    answers.append([held("p1", B)])
    await known.step()
    assert (known.of(A), known.of(B)) == (contract.OTHER_OWNER, "uid-p1")
    await known.step()
    assert known.of(B) == "uid-p1"
    assert known.foreign([B]) == ""
    assert (
        known.foreign([A, B]) == f"{A} belongs to another device plugin, not to a placeholder: wait, or delete the pod"
    )


def test_only_processes_of_marked_placeholders_are_ended() -> None:
    with subprocess.Popen(["sleep", "60"]) as marked, subprocess.Popen(["sleep", "60"]) as other:
        pods = {marked.pid: "uid-p1", other.pid: "uid-p2"}

        def identify(pid: int) -> Container | Refusal:
            return Container(pods[pid], "c") if pid in pods else kernel_process_of(pid)

        try:
            assert gpu_owners.end({"uid-p1"}, identify) == 1
            assert marked.wait(10) == -signal.SIGKILL
            assert other.poll() is None
        finally:
            other.kill()


async def test_a_marked_placeholder_ends_once_its_gpu_has_no_process_whatever_another_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {A: "p1", B: "p2", "GPU-c": "p3"}
    gpus = tuple(
        dataclasses.replace(builders.gpu(index), uuid=uuid, owner=f"uid-{name}")
        for index, (uuid, name) in enumerate(names.items())
    )
    marked = GpuNode("node-a", gpus=gpus, allocations=(builders.allocation("a1", "GPU-c"),))
    marked = marked.borrowing({gpu.uuid: borrowing.mark(gpu.owner) for gpu in gpus})
    running, ended = {A: ("python (7)",)}, list[set[str]]()
    monkeypatch.setattr(gpu_owners, "end", lambda uids, _: ended.append(set(uids)))

    async def ask() -> Sequence[ContainerDevices]:
        return [held(name, uuid) for uuid, name in names.items()]

    async def processes(uuids: Collection[str]) -> dict[str, tuple[str, ...]]:
        return {uuid: running.get(uuid, ()) for uuid in uuids}

    known = GpuOwners(
        Observable(None),
        is_borrowing=lambda: True,
        held=ask,
        pods=lambda: [placeholder(name) for name in names.values()],
        uuids=lambda: tuple(names),
        identify=kernel_process_of,
        processes=processes,
        node=lambda: marked,
        wake=asyncio.Event(),
    )
    await known.step()
    assert ended == [{"uid-p2"}]  # p1's GPU has a process, p3's a share
    running.clear()
    await known.step()
    assert ended[1:] == [{"uid-p1", "uid-p2"}]
