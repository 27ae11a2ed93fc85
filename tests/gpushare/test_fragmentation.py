import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import gpu_capacity
from gpushare.ledger import GpuUse
from gpushare.policies import Typical
from tests import builders
from tests.builders import GIB


def test_empty_gpu_has_nothing_stranded() -> None:
    result = gpu_capacity.fragmentation([(builders.gpu(), GpuUse())])
    assert result == gpu_capacity.Fragmentation(1.0, 0.0, 100, 80 * GIB)
    assert result.ratio == 0.0


def test_capacity_unusable_for_typical_requests_is_stranded() -> None:
    mix = (Typical(0.5, 0.5, 1.0),)
    result = gpu_capacity.fragmentation(
        [(builders.gpu(), GpuUse(request_percent=60, memory_bytes=48 * GIB))], lambda _: mix
    )
    assert result.free_gpus == pytest.approx(0.4)
    assert result.ratio == 1.0


def test_free_compute_without_memory_is_stranded() -> None:
    free, stranded = gpu_capacity.stranded(builders.gpu(), GpuUse(request_percent=0, memory_bytes=80 * GIB))
    assert (free, stranded) == (0.5, 0.5)


def test_largest_share_needs_memory() -> None:
    full, half = GpuUse(request_percent=10, memory_bytes=80 * GIB), GpuUse(request_percent=50, memory_bytes=8 * GIB)
    result = gpu_capacity.fragmentation([(builders.gpu(0), full), (builders.gpu(1), half)])
    assert (result.largest_percent, result.largest_memory_bytes) == (50, 72 * GIB)
    assert gpu_capacity.largest(builders.gpu(0), full) is None


@pytest.mark.parametrize("closed", [{"healthy": False}, {"cordoned": True}])
def test_closed_gpu_has_nothing_free(closed: dict[str, bool]) -> None:
    assert gpu_capacity.fragmentation([(builders.gpu(**closed), GpuUse())]).free_gpus == 0.0


@given(st.integers(0, 100), st.integers(0, 80))
def test_stranded_never_exceeds_free(percent: int, gib: int) -> None:
    free, stranded = gpu_capacity.stranded(builders.gpu(), GpuUse(percent, gib * GIB))
    assert 0.0 <= stranded <= free <= 1.0
