"""Static SM partitions of MPS: chunks, refusals, and the containment of faults."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simgpu import mps_node
from tests.simgpu.conftest import Node
from tests.simgpu.mps_node import CONTROL, NEW_DRIVER, Daemon, client
from tests.simgpu.test_mps import took
from tests.simgpu.test_mps_faults import kill, runs

pytestmark = pytest.mark.slow

MULTIPROCESSORS = 16
ILLEGAL_ADDRESS, SERVER_NOT_READY, INVALID_CONFIGURATION = 700, 807, 915
HOPPER = {"compute_capability": "9.0", "multiprocessors": "132"}
BEFORE_CONTAINMENT = {"driver_version": "595.10", "cuda_version": "13.2"}


@contextlib.contextmanager
def partitioned(place: Path, **replaced: str) -> Iterator[tuple[Node, Daemon, str]]:
    """Yield a node, its daemon with -S, and its first GPU."""
    with (
        mps_node.described(place, **{**NEW_DRIVER, **replaced}) as node,
        mps_node.daemon(node, place / "mps", "-S") as mps,
    ):
        yield node, mps, node.nvml("print(nvml.nvmlDeviceGetUUID(gpu(0)))")


def added(mps: Daemon, gpu: str, chunks: int) -> dict[str, str]:
    """Add a partition and return the environment of its clients."""
    first, name, last = mps.tell(f"sm_partition add {gpu} {chunks}").split()
    assert (first, last) == ("Partition", "created")
    assert name.startswith(f"{gpu}/")
    return {**mps.environment, "CUDA_MPS_SM_PARTITION": name}


def rows(mps: Daemon, gpu: str) -> list[list[str]]:
    """Return the columns after the name: free and used chunks, free and used multiprocessors, whether it has clients."""
    found = [line.split() for line in mps.tell("lspart").splitlines() if line.startswith(gpu[:12])]
    return [columns[2:] for columns in found]


@pytest.mark.parametrize(
    ("replaced", "whole", "part"),
    [
        ({}, ["27", "0", "108", "0", "-"], ["-", "2", "-", "8", "No"]),  # Ampere: chunks of 4
        (HOPPER, ["16", "0", "132", "0", "-"], ["-", "2", "-", "16", "No"]),
    ],
    ids=["Ampere", "Hopper"],
)
def test_partitions_are_cut_in_chunks(
    tmp_path: Path, replaced: dict[str, str], whole: list[str], part: list[str]
) -> None:
    with partitioned(tmp_path, **replaced) as (node, mps, gpu):
        assert rows(mps, gpu) == [whole]
        environment = added(mps, gpu, 2)
        free, _, multiprocessors, *_ = map(int, rows(mps, gpu)[0][:4])
        assert (free, multiprocessors) == (int(whole[0]) - 2, int(whole[2]) - int(part[3]))
        assert rows(mps, gpu)[1] == part
        with client(node, environment) as one:
            assert one.does(f"attribute {MULTIPROCESSORS}") == int(part[3])
            assert rows(mps, gpu)[1][-1] == "Yes"
        assert (
            mps.tell(f"sm_partition add {gpu} {free + 1}")
            == f"Failed to fulfill the requested SM partition of {free + 1} chunks, "
            "error CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION\n"
        )
        added(mps, gpu, free)


def test_partitions_change_only_without_clients(tmp_path: Path) -> None:
    with partitioned(tmp_path) as (node, mps, gpu):
        environment, spare = added(mps, gpu, 4), added(mps, gpu, 4)
        used, free = (each["CUDA_MPS_SM_PARTITION"].partition("/")[2] for each in (environment, spare))
        with client(node, environment):
            assert "CUDA_ERROR_NOT_PERMITTED" in mps.tell(f"sm_partition add {gpu} 1")
            assert "CUDA_ERROR_NOT_PERMITTED" in mps.tell(f"sm_partition rm {gpu} {used}")
            assert mps.tell(f"sm_partition rm {gpu} {free}") == ""
            assert len(rows(mps, gpu)) == 2
        assert mps.tell(f"sm_partition rm {gpu}/{used}") == ""
        assert len(rows(mps, gpu)) == 1
        assert "CUDA_ERROR_INVALID_VALUE" in mps.tell(f"sm_partition rm {gpu} {used}")


def test_clients_need_a_partition_of_the_gpu(tmp_path: Path) -> None:
    with partitioned(tmp_path) as (node, mps, gpu):
        environment = added(mps, gpu, 4)
        for wrong in ({}, {"CUDA_MPS_SM_PARTITION": f"{gpu}/other"}):
            with client(node, {**mps.environment, **wrong}) as one:
                assert one.first == f"0 {INVALID_CONFIGURATION}"
        with client(node, environment, device=1) as elsewhere:
            assert elsewhere.first == f"0 {INVALID_CONFIGURATION}"
        with client(node, environment) as one:
            assert one.first == "0 0"


def test_partition_is_exclusive_and_percentages_do_not_count(tmp_path: Path) -> None:
    with partitioned(tmp_path, multiprocessors="100") as (node, mps, gpu):
        quarter, half = added(mps, gpu, 6), added(mps, gpu, 12)
        percent = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "3"}
        alone = took(node, "k_24ms", {**quarter, **percent})
        assert alone == pytest.approx([100], abs=15), "it gets no multiprocessors outside its partition, even idle ones"
        assert took(node, "k_24ms", quarter, half) == pytest.approx([100, 50], abs=15)


@pytest.mark.parametrize("contained", [True, False], ids=["from 610", "before"])
def test_faults_stay_in_their_partition_from_driver_610(tmp_path: Path, contained: bool) -> None:
    with partitioned(tmp_path, **({} if contained else BEFORE_CONTAINMENT)) as (node, mps, gpu):
        left, right = added(mps, gpu, 4), added(mps, gpu, 4)
        with client(node, left) as one, client(node, left) as beside, client(node, right) as other:
            one.does("launch fault_1ms")
            assert (one.does("wait"), beside.does("wait")) == (ILLEGAL_ADDRESS, ILLEGAL_ADDRESS)
            if contained:
                assert runs(other)
                with client(node, right) as late:
                    assert late.first == "0 0"
            else:
                assert other.does("wait") == ILLEGAL_ADDRESS
            with client(node, left) as late:
                assert late.first == str(SERVER_NOT_READY)
            for each in (one, beside, other):
                kill(each)
        with client(node, left) as after:
            assert runs(after)


def test_older_drivers_have_no_partitions(node: Node, tmp_path: Path) -> None:
    result = node.run([CONTROL, "-f", "-S"], {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)})
    assert result.returncode == 1
    assert result.stderr == "Unknown option -S: static SM partitions need a driver with CUDA 13.1 or later\n"


def test_gpus_before_ampere_have_no_partitions(tmp_path: Path) -> None:
    with partitioned(tmp_path, compute_capability="7.5") as (_, mps, gpu):
        assert "CUDA_ERROR_NOT_SUPPORTED" in mps.tell(f"sm_partition add {gpu} 1")
