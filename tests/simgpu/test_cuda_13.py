"""The simulated driver is one of CUDA 13.0: it has every function in that header, with the header's versions."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.gpu.driver_facts import base, exported_names
from tests.interposer import cuda_headers
from tests.simgpu import in_memory
from tests.simgpu.conftest import COMMAND, DRIVERS, ROOT, Node
from tests.simgpu.programs import cuda_13

NEWEST = "13.0"
H100 = """
[node]
name = one-h100
driver-version = 580.159.04
cuda-version = 13.0
[gpu 0]
count = 2
model = NVIDIA H100 80GB HBM3
memory = 81559MiB
compute-capability = 9.0
context-memory = 528MiB
memory-block = 2MiB
"""
_ENTRY = re.compile(r"^(?:ENTRY|UNSIMULATED)\((\w+), (\w+), (\d+), ([01])", re.MULTILINE)


def entries() -> set[tuple[str, str, int, bool]]:
    """Symbol, name, version and whether it is for per-thread streams, for all functions that cuGetProcAddress
    returns.
    """
    tables = "".join(
        (ROOT / "simgpu" / "cuda" / "abi" / f"{name}.def").read_text()
        for name in ("entries", "per_thread", "unsimulated")
    )
    return {(symbol, name, int(version), flag == "1") for symbol, name, version, flag in _ENTRY.findall(tables)}


@pytest.fixture
def h100(tmp_path: Path) -> Iterator[Node]:
    """Two H100 with a driver of CUDA 13.0."""
    description = tmp_path / "node.ini"
    description.write_text(H100)
    with in_memory.directory(tmp_path) as directory:
        subprocess.run([COMMAND, "create", description, directory / "gpus"], check=True)
        yield Node(directory / "gpus")


def in_header(what: str) -> frozenset[str]:
    try:
        return cuda_headers.functions(NEWEST) if what == "functions" else cuda_headers.forms(NEWEST)
    except cuda_headers.UnavailableError as error:
        if cuda_headers.in_ci():
            raise
        pytest.skip(f"{error}: connect to a package index and run again, for this compares the driver with its header")


@pytest.mark.slow
def test_driver_exports_every_function_in_the_header() -> None:
    functions = in_header("functions")
    assert len(functions) > 500
    assert functions - set(exported_names(DRIVERS / "libcuda.so.1")) == set()


@pytest.mark.slow
def test_every_form_has_the_version_of_the_header() -> None:
    """The header names the types of functions by the version that introduced each form."""
    ours = {f"{name}_v{version}{'_ptsz' if flag else ''}" for _, name, version, flag in entries()}
    older = {f"{name}_v{version}" for _, name, version, _ in entries()}
    assert {form for form in in_header("forms") if form.replace("_ptds", "_ptsz") not in ours | older} == set()


def test_functions_from_get_proc_address_are_exported() -> None:
    assert {symbol for symbol, *_ in entries()} <= set(exported_names(DRIVERS / "libcuda.so.1"))
    assert all(base(symbol) == base(name) for symbol, name, *_ in entries())


def test_get_proc_address_follows_the_described_cuda_version(h100: Node) -> None:
    h100.program(cuda_13.versions)


def test_gpu_matches_its_description(h100: Node) -> None:
    name, total_mib, used_mib, block_mib = h100.program(cuda_13.gpu).splitlines()
    assert (name, total_mib, used_mib, block_mib) == ("NVIDIA H100 80GB HBM3", "81559", "528", "2")
    said = h100.nvml("print(nvml.nvmlSystemGetDriverVersion(), nvml.nvmlSystemGetCudaDriverVersion_v2())")
    assert said == "580.159.04 13000"


def test_calls_with_a_context_act_on_that_context(h100: Node) -> None:
    h100.program(cuda_13.contexts)


def test_links_report_their_atomics(h100: Node) -> None:
    h100.program(cuda_13.atomics)


def test_pools_are_found_by_location_and_type(h100: Node) -> None:
    h100.program(cuda_13.pools)


@pytest.mark.parametrize("form", ["", "_ptsz", "_v2", "_v2_ptsz"])
def test_batch_copies_all_its_items(h100: Node, form: str) -> None:
    h100.program(cuda_13.copies, "cuMemcpyBatchAsync" + form)
    h100.program(cuda_13.copies_in_three_dimensions, "cuMemcpy3DBatchAsync" + form)


@pytest.mark.parametrize("form", ["", "_ptsz"])
def test_batch_prefetches_accept_only_managed_memory(h100: Node, form: str) -> None:
    h100.program(cuda_13.moves, form)
