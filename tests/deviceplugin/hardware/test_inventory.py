"""The GPUs and conditions of the GPUNode."""

from __future__ import annotations

import dataclasses

import yaml

from deviceplugin.hardware import inventory, nvml
from deviceplugin.modes import transition
from deviceplugin.report import gpunode_status
from deviceplugin.state.node_state import Unreadable
from gpushare.config.config_choice import ActiveConfig
from gpushare.gpunode import Condition, Mode
from gpushare.modes.assignment import Assignment
from tests import builders
from tests.deviceplugin import simulated

GPUS = builders.node(gpus=3).gpus
NOW, BEFORE = "2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z"


def test_gpus_are_those_of_the_driver() -> None:
    assert inventory.merge((), nvml.NvmlSnapshot(GPUS), faults={}, held=()) == GPUS


def test_lost_gpu_keeps_its_uuid_and_gets_a_reason() -> None:
    seen = nvml.NvmlSnapshot((GPUS[0], GPUS[2]), (Unreadable(1, "GPU is lost"),))
    gpus = inventory.merge(GPUS, seen, faults={}, held=())
    assert [gpu.uuid for gpu in gpus] == [gpu.uuid for gpu in GPUS]
    assert (gpus[1].healthy, gpus[1].health_reason) == (False, "it does not answer: GPU is lost")
    assert gpus[0].healthy
    assert gpus[2].healthy


def test_unknown_unreadable_gpu_is_counted_and_named() -> None:
    seen = nvml.NvmlSnapshot((GPUS[0], GPUS[2]), (Unreadable(1, "GPU is lost"),))
    gpus = inventory.merge((), seen, faults={}, held=())
    unread = inventory.unidentified(gpus, seen)
    assert unread == (Unreadable(1, "GPU is lost"),)
    assert inventory.unidentified(inventory.merge(GPUS, seen, faults={}, held=()), seen) == ()
    (ready,) = gpunode_status.conditions(gpus, previous=(), now=NOW, unread=unread)
    assert (ready.status, ready.reason) == ("True", "SomeGpusUnhealthy")
    assert ready.message == "2 of 3 GPUs are healthy; GPU 1 does not answer: GPU is lost"
    (ready,) = gpunode_status.conditions((), previous=(), now=NOW, unread=unread)
    assert (ready.status, ready.reason) == ("False", "AllGpusUnhealthy")
    assert ready.message == "0 of 1 GPUs are healthy; GPU 1 does not answer: GPU is lost"


def test_silent_driver_differs_from_a_node_without_gpus() -> None:
    (ready,) = gpunode_status.conditions((), previous=(), now=NOW, unread=[Unreadable(None, "Unknown Error")])
    assert (ready.status, ready.reason) == ("False", "AllGpusUnhealthy")
    assert ready.message == "no GPU can be read; the driver does not answer: Unknown Error"


def test_gpu_known_only_to_the_kernel_is_counted_and_named() -> None:
    seen = nvml.NvmlSnapshot(GPUS[:2], (Unreadable(None, "not listed", "0000:0a:00.0"),))
    unread = inventory.unidentified(GPUS[:2], seen)
    (ready,) = gpunode_status.conditions(GPUS[:2], previous=(), now=NOW, unread=unread)
    assert (ready.status, ready.reason) == ("True", "SomeGpusUnhealthy")
    assert ready.message == "2 of 3 GPUs are healthy; GPU 0000:0a:00.0 does not answer: not listed"
    held = dataclasses.replace(GPUS[2], pci_bus_id="00000000:0A:00.0")
    assert inventory.unidentified((*GPUS[:2], held), seen) == (), "it is known and unhealthy"


def test_gpu_that_answers_again_is_healthy() -> None:
    lost = inventory.merge(GPUS, nvml.NvmlSnapshot((), (Unreadable(0, "lost"),)), faults={}, held=())
    assert inventory.merge(lost, nvml.NvmlSnapshot(GPUS), faults={}, held=()) == GPUS


def test_removed_gpu_stays_while_it_is_held() -> None:
    seen = nvml.NvmlSnapshot(GPUS[:2])
    assert inventory.merge(GPUS, seen, faults={}, held=()) == GPUS[:2]
    gpus = inventory.merge(GPUS, seen, faults={}, held=[GPUS[2].uuid])
    assert [gpu.uuid for gpu in gpus] == [gpu.uuid for gpu in GPUS]
    assert gpus[2].health_reason == "the driver no longer lists it"


def test_replacement_at_the_same_index_is_a_new_gpu() -> None:
    fresh = dataclasses.replace(GPUS[1], uuid="GPU-fresh")
    gpus = inventory.merge(GPUS, nvml.NvmlSnapshot((GPUS[0], fresh, GPUS[2])), faults={}, held=())
    assert [gpu.uuid for gpu in gpus] == [GPUS[0].uuid, "GPU-fresh", GPUS[2].uuid]


def test_faults_make_gpus_unhealthy_unless_the_driver_gives_a_reason() -> None:
    ill = dataclasses.replace(GPUS[1], healthy=False, health_reason="rows wait to be remapped")
    faults = {gpu.uuid: "XID 48 happened" for gpu in GPUS[:2]}
    gpus = inventory.merge((), nvml.NvmlSnapshot((GPUS[0], ill, GPUS[2])), faults=faults, held=())
    assert [gpu.health_reason for gpu in gpus] == ["XID 48 happened", "rows wait to be remapped", ""]


def test_node_is_ready_while_one_gpu_is_healthy() -> None:
    ill = [dataclasses.replace(gpu, healthy=False, health_reason="it is lost") for gpu in GPUS]
    cases = {
        "GpusHealthy": (GPUS, "True", "3 of 3 GPUs are healthy"),
        "SomeGpusUnhealthy": (
            (*GPUS[:2], ill[2]),
            "True",
            f"2 of 3 GPUs are healthy; GPU 2 ({GPUS[2].uuid}): it is lost",
        ),
        "NoGpus": ((), "False", "0 of 0 GPUs are healthy"),
    }
    for reason, (gpus, status, message) in cases.items():
        (ready,) = gpunode_status.conditions(gpus, previous=(), now=NOW)
        assert ready == Condition("Ready", status, reason, message, NOW)
    (ready,) = gpunode_status.conditions(ill, previous=(), now=NOW)
    assert (ready.status, ready.reason) == ("False", "AllGpusUnhealthy")


def test_kubelet_that_closes_the_stream_makes_the_node_not_ready() -> None:
    (ready,) = gpunode_status.conditions(GPUS, previous=(), now=NOW, hung_up="the kubelet hangs up")
    assert (ready.status, ready.reason) == ("False", "KubeletHangsUp")
    assert ready.message == "the kubelet hangs up; 3 of 3 GPUs are healthy"


def test_condition_keeps_its_time_until_its_status_changes() -> None:
    first = gpunode_status.conditions(GPUS, previous=(), now=BEFORE)
    same = gpunode_status.conditions(GPUS[:2], previous=first, now=NOW)
    assert [condition.last_transition for condition in same] == [BEFORE]
    assert same[0].message != first[0].message
    changed = gpunode_status.conditions((), previous=first, now=NOW)
    assert [condition.last_transition for condition in changed] == [NOW]


def test_long_pod_names_do_not_exceed_the_message_limit() -> None:
    """The API server would reject the whole status, so the GPUs' health would not be updated while such pods exist."""
    (version,) = yaml.safe_load((simulated.ROOT / "config/base/crd/gpunodes.yaml").read_text())["spec"]["versions"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    longest = status["conditions"]["items"]["properties"]["message"]["maxLength"]
    gpus = builders.node(gpus=8).gpus
    users = tuple(f"pod {'n' * 63}/{number:0>253}" for number in range(30))
    said = transition.config_status(
        config=ActiveConfig("wanted"),
        problem="",
        warnings=(),
        gpus=gpus,
        wanted={gpu.uuid: Assignment(Mode.EXCLUSIVE) for gpu in gpus},
        waiting={gpu.uuid: users for gpu in gpus},
        failed={},
        changing=[gpu.uuid for gpu in gpus],
    )
    conditions = gpunode_status.conditions(gpus, previous=(), now=NOW, more=said.conditions)
    assert max(len(condition.message) for condition in conditions) == longest
    assert conditions[-1].message.endswith("…")
