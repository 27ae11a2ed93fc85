"""Share containers on nodes where the environment does not select the GPU, over real sockets with real files."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from deviceplugin.allocation import answer
from deviceplugin.arbiter.tenant import StartingContainer
from deviceplugin.kubelet import plugin_registration, plugin_service, share_answers
from deviceplugin.mps import sm_partitions
from deviceplugin.state import advertisement
from deviceplugin.state.node_state import Observable
from gpushare import contract
from gpushare.allocation import Isolation, MigInstance
from gpushare.config.node_settings import NodeSettings
from tests import builders
from tests.deviceplugin.kubelet.starting_node import (
    BY_CDI,
    BY_CLASS,
    BY_DEFAULT,
    BY_NOTHING,
    FIRST,
    MOUNTS,
    PERCENT,
    SECOND,
    Node,
)

pytestmark = pytest.mark.slow


@pytest.fixture
async def node(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr(plugin_registration, "CHECK_SECONDS", 0.05)
    (short_path / "kubelet").mkdir()
    made = Node(short_path, BY_CDI)
    await made.kubelet.start()
    devices = advertisement.of_shares(builders.node(gpus=2).gpus)
    served = plugin_service.ServedResource(PERCENT, made.answers())
    keeper = plugin_registration.Registration(served, advertised=Observable(devices), directory=made.kubelet.directory)
    task = asyncio.create_task(keeper.run())
    await made.kubelet.until(lambda: made.kubelet.lists == 1)
    yield made
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await made.kubelet.stop()


async def refused(node: Node, pod: str) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await node.kubelet.start_container(pod)
    assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    return str(error.value.details())


async def test_start_describes_the_shares_gpus_under_the_cdi_name(node: Node) -> None:
    node.gives("one", SECOND)
    node.gives("both", FIRST, SECOND)
    (device,) = (await node.kubelet.admit("one", PERCENT, 50)).cdi_devices
    (both,) = (await node.kubelet.admit("both", PERCENT, 20)).cdi_devices
    assert device.name != both.name
    assert not node.cdi.exists()  # until then the runtime does not know the name and creates no container
    await asyncio.gather(node.kubelet.start_container("one"), node.kubelet.start_container("both"))
    assert node.described(device.name) == ["/dev/nvidia1"]
    assert node.described(both.name) == ["/dev/nvidia0", "/dev/nvidia1"]


async def test_reallocated_ids_are_undescribed_until_the_next_start(node: Node) -> None:
    node.gives("first", FIRST)
    (name,) = (await node.kubelet.admit("first", PERCENT, 50)).cdi_devices
    await node.kubelet.start_container("first")
    ids = node.kubelet.pods.pop("first")[1]
    (again,) = (await node.kubelet.allocate(PERCENT, ids)).container_responses
    assert [cdi_device.name for cdi_device in again.cdi_devices] == [name.name]
    assert list(node.cdi.iterdir()) == []
    node.gives("second", SECOND)
    node.kubelet.pods["second"] = (PERCENT, ids)
    await node.kubelet.start_container("second")
    assert node.described(name.name) == ["/dev/nvidia1"]


async def test_unknown_pod_does_not_start(node: Node) -> None:
    await node.kubelet.admit("strange", PERCENT, 50)
    assert await refused(node, "strange") == (
        "the GPUs of this container are unknown: the API server did not answer in time"
    )


async def test_ids_unknown_to_the_kubelet_do_not_start(node: Node) -> None:
    node.gives("trainer", FIRST)
    await node.kubelet.admit("trainer", PERCENT, 50)
    resource, ids = node.kubelet.pods["trainer"]
    node.kubelet.pods["trainer"] = (resource, ids[:-1])
    with pytest.raises(plugin_service.AllocateRefusedError, match="reports no container with these 50 devices of"):
        await node.answers().start(PERCENT, ids)


async def test_finds_an_init_container_in_the_kubelets_checkpoint(node: Node) -> None:
    node.given["trainer/warm"] = StartingContainer("ml", "trainer", (SECOND,), "", "uid-trainer")
    node.gives("trainer", SECOND)
    await node.kubelet.admit("trainer", PERCENT, 80)
    ids = node.kubelet.pods["trainer"][1]
    node.kubelet.pods["trainer"] = (PERCENT, ids[:70])  # as the kubelet reuses the init container's ids
    node.keeps("trainer", warm=ids, main=ids[:70])
    await node.answers().start(PERCENT, ids)
    assert node.described(f"{contract.CDI_SHARE_KIND}={answer.cdi_share_name(ids)}") == ["/dev/nvidia1"]
    await node.kubelet.start_container("trainer")
    assert node.described(f"{contract.CDI_SHARE_KIND}={answer.cdi_share_name(ids[:70])}") == ["/dev/nvidia1"]
    # the init container may start again
    assert node.described(f"{contract.CDI_SHARE_KIND}={answer.cdi_share_name(ids)}") == ["/dev/nvidia1"]


@pytest.mark.parametrize("uuid", [FIRST, SECOND])
async def test_containers_that_reuse_ids_must_use_the_same_gpus(node: Node, uuid: str) -> None:
    node.given["trainer/warm"] = StartingContainer("ml", "trainer", (uuid,), "", "uid-trainer")
    node.gives("trainer", SECOND)
    await node.kubelet.admit("trainer", PERCENT, 80)
    ids = node.kubelet.pods["trainer"][1]
    node.keeps("trainer", warm=ids, main=ids)
    if uuid == SECOND:
        await node.kubelet.start_container("trainer")
        assert node.described(f"{contract.CDI_SHARE_KIND}={answer.cdi_share_name(ids)}") == ["/dev/nvidia1"]
        return
    assert await refused(node, "trainer") == (
        'the GPUs of this container are unknown: the containers "main" and "warm" use the same 80 '
        "devices of gpushare.io/gpu-percent in turn, but their shares are on different GPUs: request a different amount in one of them"
    )


async def test_described_container_restarts_without_an_api_server(node: Node) -> None:
    node.gives("trainer", SECOND)
    (name,) = (await node.kubelet.admit("trainer", PERCENT, 50)).cdi_devices
    await node.kubelet.start_container("trainer")
    node.given.clear()
    await node.kubelet.start_container("trainer")
    assert node.described(name.name) == ["/dev/nvidia1"]


async def test_next_start_removes_descriptions_of_gone_containers(node: Node) -> None:
    for pod in ("one", "two"):
        node.gives(pod, FIRST)
        await node.kubelet.admit(pod, PERCENT, 10)
        await node.kubelet.start_container(pod)
    assert len(list(node.cdi.iterdir())) == 2
    del node.kubelet.pods["one"]
    await node.kubelet.start_container("two")
    assert len(list(node.cdi.iterdir())) == 1


async def test_refuses_a_gpu_without_a_device_node(node: Node) -> None:
    node.gives("trainer", "GPU-9999")
    await node.kubelet.admit("trainer", PERCENT, 50)
    assert await refused(node, "trainer") == "no device node of GPU-9999 is known on this node"


async def test_only_pods_with_the_needed_runtime_class_start(node: Node) -> None:
    node.injection = BY_CLASS
    node.gives("bare", FIRST)
    node.gives("named", FIRST, runtime_class="nvidia")
    response = await node.kubelet.admit("bare", PERCENT, 10)
    assert not response.cdi_devices
    assert await refused(node, "bare") == (
        "the pod ml/bare would get no GPU on this node: set runtimeClassName: nvidia"
    )
    await node.kubelet.admit("named", PERCENT, 10)
    await node.kubelet.start_container("named")
    assert not node.cdi.exists()


async def test_no_container_starts_if_nothing_injects_devices(node: Node) -> None:
    node.injection = BY_NOTHING
    node.gives("trainer", FIRST)
    await node.kubelet.admit("trainer", PERCENT, 10)
    assert "containers would get no GPU: envvar: the agent's own container requested" in await refused(node, "trainer")


async def test_registers_again_when_the_need_for_start_changes(node: Node) -> None:
    assert node.kubelet.requests[-1].options.pre_start_required
    for injection in (BY_DEFAULT, BY_CDI):
        node.injection = injection
        await node.kubelet.until(
            lambda wanted=injection.uses_cdi: node.kubelet.requests[-1].options.pre_start_required == wanted
        )


def test_annotations_contain_the_same_cdi_name() -> None:
    settings = NodeSettings(device_list_strategies=("cdi-annotations",))
    response = share_answers.ShareAnswers(MOUNTS, settings=lambda: settings).allocate(PERCENT, ["GPU-b::1", "GPU-a::0"])
    name = answer.cdi_share_name(["GPU-a::0", "GPU-b::1"])
    assert dict(response.annotations) == {f"cdi.k8s.io/nvidia-device-plugin_{name}": f"gpushare.io/share={name}"}
    assert not response.cdi_devices


async def test_a_pod_starts_once_the_driver_keeps_its_memory_limit(node: Node) -> None:
    node.injection = BY_DEFAULT
    node.gives("trainer", FIRST)
    node.memory_limits.problem = "the driver's memory limit is not in force: GPU is lost"
    await node.kubelet.admit("trainer", PERCENT, 50)
    ids = node.kubelet.pods["trainer"][1]
    with pytest.raises(plugin_service.AllocateRefusedError, match="is not in force: GPU is lost"):
        await node.answers().start(PERCENT, ids)
    node.memory_limits.problem = ""
    await node.answers().start(PERCENT, ids)
    assert node.memory_limits.covered == ["uid-trainer", "uid-trainer"]
    node.given.clear()
    with pytest.raises(plugin_service.AllocateRefusedError, match="unknown: the API server did not answer in time"):
        await node.answers().start(PERCENT, ids)


async def test_containers_that_reuse_ids_have_the_limit_of_their_pod(node: Node) -> None:
    node.injection = BY_DEFAULT
    node.memory_limits.problem = ""
    node.given["trainer/warm"] = StartingContainer("ml", "trainer", (FIRST,), "", "uid-trainer")
    node.gives("trainer", SECOND)
    await node.kubelet.admit("trainer", PERCENT, 80)
    ids = node.kubelet.pods["trainer"][1]
    node.keeps("trainer", warm=ids, main=ids)
    await node.answers().start(PERCENT, ids)
    assert node.memory_limits.covered == ["uid-trainer"]


async def test_a_share_of_mps_gets_the_pipe_of_its_gpus_daemon_once_that_runs(node: Node) -> None:
    client = StartingContainer("ml", "client", (SECOND,), isolation=Isolation.MPS, limit_percent=60)
    node.given["client"] = client
    node.mps_problem = "the MPS daemon of GPU-2222 takes no client now: it has ended"
    (name,) = (await node.kubelet.admit("client", PERCENT, 50)).cdi_devices
    assert await refused(node, "client") == node.mps_problem
    assert not node.cdi.exists()
    node.mps_problem = ""
    await node.kubelet.start_container("client")
    assert node.described(name.name) == ["/dev/nvidia1"]
    (path,) = node.cdi.iterdir()
    (device,) = json.loads(path.read_text())["devices"]
    edits = device["containerEdits"]
    assert edits["env"] == [
        f"CUDA_MPS_PIPE_DIRECTORY={contract.CONTAINER_MPS_PIPE}",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=60",
    ]
    assert [(mount["containerPath"], mount["hostPath"], mount["options"][0]) for mount in edits["mounts"]] == [
        (contract.CONTAINER_MPS_PIPE, "/run/mps/GPU-2222/clients", "rw"),
        ("/dev/shm", "/run/mps/shm", "rw"),
    ]
    node.given["client"] = dataclasses.replace(client, slot="of-client/0")
    await node.kubelet.start_container("client")
    (device,) = json.loads(path.read_text())["devices"]
    key = sm_partitions.key("of-client/0")
    mount = device["containerEdits"]["mounts"][0]
    assert (mount["containerPath"], mount["hostPath"], mount["options"][0]) == (
        contract.CONTAINER_MPS_PARTITION,
        f"/run/mps/GPU-2222/shares/{key}",
        "ro",
    )


async def test_a_share_of_mig_gets_its_device_alone_once_that_exists(node: Node) -> None:
    device = MigInstance("1g.10gb", 6, 1, 14, 10 << 30)
    node.given["cut"] = StartingContainer("ml", "cut", (SECOND,), isolation=Isolation.MIG, mig=device)
    node.mig_problem = f"the MIG device 1g.10gb@6 of GPU {SECOND} cannot be created: a process still uses the whole GPU"
    (name,) = (await node.kubelet.admit("cut", PERCENT, 10)).cdi_devices
    assert await refused(node, "cut") == node.mig_problem
    assert not node.cdi.exists()
    node.mig_problem = ""
    await node.kubelet.start_container("cut")
    assert node.described(name.name) == ["/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap30"]
    (path,) = node.cdi.iterdir()
    (entry,) = json.loads(path.read_text())["devices"]
    assert entry["containerEdits"]["env"] == [f"CUDA_VISIBLE_DEVICES=MIG-{SECOND}-1g.10gb"]


async def test_a_share_of_another_kind_starts_only_on_a_whole_gpu(node: Node) -> None:
    node.gives("trainer", SECOND)
    node.mig_problem = f"GPU {SECOND} is still in MIG mode: MIG devices of ended pods are still on it"
    await node.kubelet.admit("trainer", PERCENT, 50)
    assert await refused(node, "trainer") == node.mig_problem
    assert not node.cdi.exists()


@pytest.mark.parametrize("kind", [Isolation.MIG, Isolation.MPS])
async def test_a_share_that_needs_cdi_never_starts_by_the_environment(node: Node, kind: Isolation) -> None:
    node.given["cut"] = StartingContainer("ml", "cut", (SECOND,), isolation=kind)
    node.gives("leased", SECOND)
    node.injection, node.by_cdi = BY_DEFAULT, True
    for pod in ("cut", "leased"):
        await node.kubelet.admit(pod, PERCENT, 10)
    assert node.answers().needs_start
    start = node.answers().start
    with pytest.raises(plugin_service.AllocateRefusedError) as error:
        await start(*node.kubelet.pods["cut"])
    assert str(error.value) == (
        f"the pod ml/cut has isolation {kind}, which needs devices by CDI: set deviceListStrategy to cdi-cri in the "
        "node's configuration, or delete and recreate the pod"
    )
    await start(*node.kubelet.pods["leased"])
    node.mig_problem = f"GPU {SECOND} is still in MIG mode: MIG devices of ended pods are still on it"
    with pytest.raises(plugin_service.AllocateRefusedError, match="is still in MIG mode"):
        await start(*node.kubelet.pods["leased"])


async def test_a_share_of_mps_waits_for_the_whole_gpu_before_its_daemon(node: Node) -> None:
    node.given["client"] = StartingContainer("ml", "client", (SECOND,), isolation=Isolation.MPS, limit_percent=60)
    node.mig_problem = f"GPU {SECOND} is still in MIG mode: MIG devices of ended pods are still on it"
    node.mps_problem = "a daemon was started"
    await node.kubelet.admit("client", PERCENT, 50)
    assert await refused(node, "client") == node.mig_problem
