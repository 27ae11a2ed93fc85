"""Tests that every CUDA function is in hooks.def, or in unhooked.txt with a reason."""

from __future__ import annotations

import functools

import pytest

from bench.gpu.driver_facts import base, excused, exported_names, hooked, unhooked
from tests.interposer import cuda_headers
from tests.interposer.container import DRIVERS


@functools.cache
def functions(version: str) -> frozenset[str]:
    return cuda_headers.available(cuda_headers.functions, version)


@pytest.mark.slow
@pytest.mark.parametrize("version", cuda_headers.PACKAGES)
def test_every_function_is_hooked_or_excused(version: str) -> None:
    patterns, bases = set(unhooked()), {base(name) for name in hooked()}
    names = functions(version)
    assert len(names) > 500
    assert cuda_headers.typed(version) <= {base(name) for name in names}
    left_out = {name for name in names - hooked() if base(name) in bases or not excused(name, patterns, hooked())}
    assert sorted(left_out) == [], f"CUDA {version}: put each into hooks.def, or into unhooked.txt with a reason"


@pytest.mark.slow
def test_every_hooked_or_excused_function_exists() -> None:
    names = frozenset(exported_names(DRIVERS / "libcuda.so.1")).union(*map(functions, cuda_headers.PACKAGES))
    patterns = set(unhooked())
    assert hooked("HOOK|REFUSE|LAUNCH|NEED") - names == set()
    used = set[str]().union(*(excused(name, patterns, hooked()) for name in names))
    assert patterns - used == set()


def test_every_hooked_function_is_in_the_table_without_version_suffix() -> None:
    """The plain name identifies variants that the library does not know."""
    assert {base(name) for name in hooked()} - hooked() == set()


def test_hooked_functions_are_not_excused() -> None:
    assert {base(name) for name in hooked()} & set(unhooked()) == set()


@pytest.mark.parametrize(
    "name", ["cuMemAllocSideways", "cuGraphAddNode_v9", "cuLaunchKernelNext", "cuCtxCreateGroup", "cuGraphUpdate"]
)
def test_new_function_that_may_allocate_or_launch_is_found(name: str) -> None:
    assert name not in hooked()
    assert base(name) in {base(hook) for hook in hooked()} or not excused(name, set(unhooked()), hooked())
