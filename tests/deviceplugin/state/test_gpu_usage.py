"""Who is in the way of a GPU's change."""

from __future__ import annotations

from typing import Any

from deviceplugin.state import gpu_usage
from deviceplugin.state.pod_resources import ContainerDevices
from tests import builders

GPU_OF = {"GPU-a": "GPU-a", "GPU-b": "GPU-b", "MIG-1": "GPU-b"}


def users(**arguments: Any) -> dict[str, tuple[str, ...]]:
    nothing: dict[str, Any] = {"allocations": (), "held": (), "just_given": (), "processes": {}, "gpu_of": GPU_OF}
    return gpu_usage.users(**nothing | arguments)


def held(pod: str, *ids: str, resource: str = "nvidia.com/gpu") -> ContainerDevices:
    return ContainerDevices("ml", pod, "main", resource, ids)


def test_nobody_uses_an_idle_gpu() -> None:
    assert users() == {}


def test_a_share_holds_its_gpu_before_its_pod_has_started() -> None:
    holders = users(allocations=[builders.allocation("a", "GPU-a")])
    assert holders == {"GPU-a": ("pod default/trainer",)}


def test_what_is_kept_free_for_a_gated_pod_is_nobodys() -> None:
    assert users(allocations=[builders.allocation("hold-a", "GPU-a")]) == {}


def test_a_device_a_replica_and_a_mig_device_are_their_gpus() -> None:
    holders = users(held=[held("x", "GPU-a"), held("y", "GPU-a::3"), held("z", "MIG-1")])
    assert holders == {"GPU-a": ("pod ml/x", "pod ml/y"), "GPU-b": ("pod ml/z",)}


def test_counters_say_nothing_of_a_gpu() -> None:
    for resource in ("gpushare.io/gpu-percent", "gpushare.io/gpu-idle"):
        assert users(held=[held("x", "GPU-a::7", resource=resource)]) == {}


def test_a_pod_that_has_ended_is_not_in_the_way_though_the_kubelet_still_lists_it() -> None:
    assert users(held=[held("x", "GPU-a")], just_given=["GPU-a"], ended=["ml/x"]) == {}


def test_what_was_just_given_counts_until_the_kubelet_tells_whose_it_is() -> None:
    assert users(just_given=["GPU-a::1"]) == {"GPU-a": ("a pod that is being started",)}
    assert users(just_given=["GPU-a::1"], held=[held("x", "GPU-a::1")]) == {"GPU-a": ("pod ml/x",)}


def test_a_process_is_told_by_its_pod_or_by_its_name() -> None:
    running = {
        "GPU-a": [
            gpu_usage.GpuUser(7, "python", "ml/x"),
            gpu_usage.GpuUser(8, "python", "ml/x"),
            gpu_usage.GpuUser(9, "X"),
        ]
    }
    assert users(processes=running) == {"GPU-a": ("pod ml/x", "process 9 (X)")}
