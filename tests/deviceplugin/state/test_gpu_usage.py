"""The users of GPUs, from ledger, kubelet and driver."""

from __future__ import annotations

from typing import Any

from deviceplugin.state import pod_resources
from deviceplugin.state.pod_resources import ContainerDevices
from tests import builders

GPU_OF = {"GPU-a": "GPU-a", "GPU-b": "GPU-b", "MIG-1": "GPU-b"}


def users(**arguments: Any) -> dict[str, tuple[str, ...]]:
    nothing: dict[str, Any] = {"allocations": (), "held": (), "just_given": (), "processes": {}, "gpu_of": GPU_OF}
    return pod_resources.users(**nothing | arguments)


def held(pod: str, *ids: str, resource: str = "nvidia.com/gpu") -> ContainerDevices:
    return ContainerDevices("ml", pod, "main", resource, ids)


def test_an_unused_gpu_has_no_users() -> None:
    assert users() == {}


def test_a_share_uses_its_gpu_before_its_pod_has_started() -> None:
    holders = users(allocations=[builders.allocation("a", "GPU-a")])
    assert holders == {"GPU-a": ("pod default/trainer",)}


def test_a_backfill_reservation_is_no_user() -> None:
    assert users(allocations=[builders.allocation("hold-a", "GPU-a")]) == {}


def test_gpus_replicas_and_mig_devices_count_for_their_gpu() -> None:
    holders = users(held=[held("x", "GPU-a"), held("y", "GPU-a::3"), held("z", "MIG-1")])
    assert holders == {"GPU-a": ("pod ml/x", "pod ml/y"), "GPU-b": ("pod ml/z",)}


def test_counters_belong_to_no_gpu() -> None:
    for resource in ("gpushare.io/gpu-percent", "gpushare.io/gpu-idle"):
        assert users(held=[held("x", "GPU-a::7", resource=resource)]) == {}


def test_a_completed_pod_is_no_user_even_if_the_kubelet_lists_it() -> None:
    assert users(held=[held("x", "GPU-a")], just_given=["GPU-a"], ended=["ml/x"]) == {}


def test_a_recent_allocation_counts_until_the_kubelet_lists_it() -> None:
    assert users(just_given=["GPU-a::1"]) == {"GPU-a": ("a pod that is being started",)}
    assert users(just_given=["GPU-a::1"], held=[held("x", "GPU-a::1")]) == {"GPU-a": ("pod ml/x",)}


def test_a_process_is_named_by_its_pod_or_its_command() -> None:
    running = {
        "GPU-a": [
            pod_resources.GpuUser(7, "python", "ml/x"),
            pod_resources.GpuUser(8, "python", "ml/x"),
            pod_resources.GpuUser(9, "X"),
        ]
    }
    assert users(processes=running) == {"GPU-a": ("pod ml/x", "process 9 (X)")}
