"""The limits of MPS clients, and the steps that start and stop a daemon."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deviceplugin.mps import steps
from deviceplugin.mps.steps import DaemonFiles
from gpushare.modes import hardware_gpu

GIB = 1 << 30
ROOT = Path("/run/mps")


@pytest.mark.slow
@settings(max_examples=100)
@given(total_bytes=st.integers(GIB, 200 * GIB), replicas=st.integers(1, 48), data=st.data())
def test_all_shares_together_never_exceed_the_gpu(total_bytes: int, replicas: int, data: st.DataObject) -> None:
    held = data.draw(st.lists(st.integers(1, replicas), max_size=replicas))
    while sum(held) > replicas:
        held.pop()
    sizes = [steps.memory_mib(total_bytes, replicas=replicas, shares=count) or 0 for count in held]
    assert sum(sizes) << 20 <= total_bytes
    assert sum(steps.thread_percent(replicas, shares=count) for count in held) <= 100


def test_a_share_of_a_gpu_with_unknown_memory_has_no_memory_limit() -> None:
    assert steps.memory_mib(0, replicas=4) is None
    spec = steps.Spec("GPU-a", (steps.MpsGpu("GPU-a", 3, 0, 4),))
    assert steps.limit_commands(spec) == ("set_default_active_thread_percentage 25",)


@pytest.mark.parametrize(
    ("capability", "as_nvidia", "most"),
    [((7, 0), True, 16), ((7, 0), False, 48), ((7, 5), True, 48), ((10, 3), True, 48), ((6, 1), False, 16)],
)
def test_a_gpu_takes_as_many_clients_as_documented(capability: tuple[int, int], as_nvidia: bool, most: int) -> None:
    assert hardware_gpu.max_mps_clients(capability, as_nvidia=as_nvidia) == most
    steps.check_replicas(most, capability, as_nvidia=as_nvidia)
    with pytest.raises(steps.LimitError, match=f"maximum allowed replicas exceeded: {most + 1} > {most}"):
        steps.check_replicas(most + 1, capability, as_nvidia=as_nvidia)


def test_a_daemon_sees_only_its_gpu() -> None:
    spec = steps.Spec("GPU-b", (steps.MpsGpu("GPU-b", 1, 80 * GIB, 4),))
    files = DaemonFiles(ROOT, "GPU-b")
    assert steps.environment(spec, files) == {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/mps/GPU-b/pipe",
        "CUDA_MPS_LOG_DIRECTORY": "/run/mps/GPU-b/log",
        "CUDA_VISIBLE_DEVICES": "GPU-b",
    }
    assert steps.limit_commands(spec) == (
        "set_default_device_pinned_mem_limit 0 20480M",
        "set_default_active_thread_percentage 25",
    )


def test_a_daemon_allows_as_much_as_the_largest_container_needs() -> None:
    spec = steps.Spec("GPU-b", (steps.MpsGpu("GPU-b", 1, 80 * GIB, 4, at_once=4),))
    assert steps.limit_commands(spec) == (
        "set_default_device_pinned_mem_limit 0 81920M",
        "set_default_active_thread_percentage 100",
    )


def test_a_container_gets_its_own_limits() -> None:
    assert steps.container_environment(80 * GIB, replicas=4, held=2) == {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=40960M",
    }


def test_stopping_undoes_starting() -> None:
    spec = steps.Spec("GPU-b", (steps.MpsGpu("GPU-b", 1, 80 * GIB, 4),))
    where = DaemonFiles(ROOT, spec.name)
    started, stopped = steps.start(spec, where), steps.stop(spec, where)
    touched = {step.path for step in started if isinstance(step, steps.Touch)}
    assert touched <= {step.path for step in stopped if isinstance(step, steps.Remove)}
    assert {step.exclusive for step in (*started, *stopped) if isinstance(step, steps.SetComputeMode)} == {True, False}
