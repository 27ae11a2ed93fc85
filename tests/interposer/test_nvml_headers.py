"""Tests that every NVML function about memory or processes is in hooks.def or unhooked_nvml.txt."""

from __future__ import annotations

import functools
import re

import pytest

from tests.interposer import cuda_headers
from tests.interposer.container import ROOT

SOURCES = ROOT / "interposer"
TELLING = re.compile(r"Mem(?!branch)|(?i:bar1)|F[Bb]|Framebuffer|Process|Accounting|Attributes|FieldValues")
_FORM = re.compile(r"_v\d+$")


def base(name: str) -> str:
    return _FORM.sub("", name)


def hooked() -> set[str]:
    table = (SOURCES / "driver" / "hooks.def").read_text()
    return set(re.findall(r"^HOOK\(NVML, (\w+),", table, re.MULTILINE))


def excused() -> list[str]:
    lines = (SOURCES / "driver" / "unhooked_nvml.txt").read_text().splitlines()
    return [name for line in lines if not line.startswith(("#", "[")) for name in line.split()]


@functools.cache
def functions(version: str) -> frozenset[str]:
    return cuda_headers.available(cuda_headers.nvml_functions, version)


@pytest.mark.slow
@pytest.mark.parametrize("version", cuda_headers.NVML_PACKAGES)
def test_every_function_about_memory_is_hooked_or_excused(version: str) -> None:
    names = functions(version)
    assert len(names) > 200
    telling = {name for name in names if TELLING.search(name)}
    left_out = {name for name in telling - hooked() if base(name) not in excused()}
    assert sorted(left_out) == [], f"NVML of CUDA {version}: put each into hooks.def, or into unhooked_nvml.txt"


@pytest.mark.slow
def test_every_hooked_or_excused_nvml_function_exists() -> None:
    names = frozenset[str]().union(*map(functions, cuda_headers.NVML_PACKAGES))
    assert hooked() - names == set()
    assert set(excused()) - {base(name) for name in names} == set()
    assert [name for name in excused() if not TELLING.search(name)] == []


def test_hooked_nvml_functions_are_not_excused() -> None:
    assert {base(name) for name in hooked()} & set(excused()) == set()
    assert len(excused()) == len(set(excused()))


def test_new_variant_of_a_hooked_nvml_function_is_found() -> None:
    for name in ("nvmlDeviceGetMemoryInfo_v9", "nvmlDeviceGetMemoryUsed"):
        assert TELLING.search(name)
        assert base(name) not in excused()
