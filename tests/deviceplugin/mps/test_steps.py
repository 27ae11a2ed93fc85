"""Limits, and the lists of steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deviceplugin.mps import limits, steps
from deviceplugin.mps.places import Places
from gpushare.modes import mps_clients

GIB = 1 << 30
ROOT = Path("/run/mps")


@pytest.mark.slow
@settings(max_examples=100)
@given(total_bytes=st.integers(GIB, 200 * GIB), replicas=st.integers(1, 48), data=st.data())
def test_all_shares_together_are_at_most_the_gpu(total_bytes: int, replicas: int, data: st.DataObject) -> None:
    held = data.draw(st.lists(st.integers(1, replicas), max_size=replicas))
    while sum(held) > replicas:
        held.pop()
    sizes = [limits.memory_mib(total_bytes, replicas=replicas, shares=count) or 0 for count in held]
    assert sum(sizes) << 20 <= total_bytes
    assert sum(limits.thread_percent(replicas, shares=count) for count in held) <= 100


def test_a_share_of_a_gpu_whose_memory_is_not_known_has_no_limit_of_memory() -> None:
    assert limits.memory_mib(0, replicas=4) is None
    spec = steps.Spec("GPU-a", (steps.MpsGpu("GPU-a", 3, 0, 4),))
    assert steps.limit_commands(spec) == ("set_default_active_thread_percentage 25",)


@pytest.mark.parametrize(
    ("capability", "as_nvidia", "most"),
    [((7, 0), True, 16), ((7, 0), False, 48), ((7, 5), True, 48), ((10, 3), True, 48), ((6, 1), False, 16)],
)
def test_volta_takes_as_many_clients_as_its_documentation_says(
    capability: tuple[int, int], as_nvidia: bool, most: int
) -> None:
    assert mps_clients.max_clients(capability, as_nvidia=as_nvidia) == most
    limits.check_replicas(most, capability, as_nvidia=as_nvidia)
    with pytest.raises(limits.LimitError, match=f"maximum allowed replicas exceeded: {most + 1} > {most}"):
        limits.check_replicas(most + 1, capability, as_nvidia=as_nvidia)


def test_each_gpu_has_a_daemon_that_sees_it_alone() -> None:
    spec = steps.Spec("GPU-b", (steps.MpsGpu("GPU-b", 1, 80 * GIB, 4),))
    places = Places(ROOT, "GPU-b")
    assert steps.environment(spec, places) == {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/mps/GPU-b/pipe",
        "CUDA_MPS_LOG_DIRECTORY": "/run/mps/GPU-b/log",
        "CUDA_VISIBLE_DEVICES": "GPU-b",
    }
    assert steps.limit_commands(spec) == (
        "set_default_device_pinned_mem_limit 0 20480M",
        "set_default_active_thread_percentage 25",
    )


def test_a_daemon_allows_what_the_largest_container_may_have() -> None:
    spec = steps.Spec("GPU-b", (steps.MpsGpu("GPU-b", 1, 80 * GIB, 4, at_once=4),))
    assert steps.limit_commands(spec) == (
        "set_default_device_pinned_mem_limit 0 81920M",
        "set_default_active_thread_percentage 100",
    )


def test_a_container_is_told_its_own_size() -> None:
    assert limits.of_container(80 * GIB, replicas=4, held=2) == {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=40960M",
    }


def test_stopping_undoes_what_starting_did() -> None:
    spec = steps.Spec("GPU-b", (steps.MpsGpu("GPU-b", 1, 80 * GIB, 4),))
    where = Places(ROOT, spec.name)
    started, stopped = steps.start(spec, where), steps.stop(spec, where)
    touched = {step.path for step in started if isinstance(step, steps.Touch)}
    assert touched <= {step.path for step in stopped if isinstance(step, steps.Remove)}
    assert {step.exclusive for step in (*started, *stopped) if isinstance(step, steps.SetComputeMode)} == {True, False}
