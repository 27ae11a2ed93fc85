"""The simulated CUDA driver as frameworks use it: attributes, kernels of any name, work in streams, libraries."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.interposer import cuda_headers
from tests.simgpu.conftest import COMMAND, ROOT, Node
from tests.simgpu.programs import cuda_frameworks, cuda_streams

SIMULATED = "12.9"  # the headers from which unsimulated.def was made


def forms(kind: str) -> dict[str, tuple[str, int, bool]]:
    """Name, version and whether it is for per-thread streams, of each symbol in the driver's tables."""
    tables = "".join(path.read_text() for path in (ROOT / "simgpu" / "cuda" / "abi").glob("*.def"))
    rows = re.findall(rf"^{kind}\((\w+), (\w+), (\d+), ([01])", tables, re.MULTILINE)
    return {symbol: (name, int(version), per_thread == "1") for symbol, name, version, per_thread in rows}


@pytest.mark.slow
def test_driver_exports_all_functions_of_its_version() -> None:
    try:
        names = cuda_headers.functions(SIMULATED)
    except cuda_headers.UnavailableError as error:
        if cuda_headers.in_ci():
            raise
        pytest.skip(f"{error}: connect to a package index and run again")
    assert names - {*forms("ENTRY"), *forms("UNSIMULATED")} == set()


def test_simulated_forms_of_a_function_are_preferred() -> None:
    simulated = forms("ENTRY").values()
    oldest = {name: min(form[1] for form in simulated if form[0] == name) for name, _, _ in simulated}
    newer = {
        symbol
        for symbol, (name, version, per_thread) in forms("UNSIMULATED").items()
        if name in oldest and (per_thread or version >= oldest[name])
    }
    assert newer == set()


def test_unsimulated_function_returns_not_supported(node: Node) -> None:
    node.program(cuda_frameworks.not_simulated)


def test_every_attribute_in_cuda_has_a_value(node: Node) -> None:
    node.program(cuda_frameworks.every_attribute)


@pytest.mark.parametrize(
    ("key", "answer"), [("", 0.1), ("kernel-duration = 500us", 5), ("kernel-duration = none", None)]
)
def test_kernel_without_duration_in_its_name_uses_the_described_one(
    tmp_path: Path, key: str, answer: float | None
) -> None:
    description = tmp_path / "node.ini"
    text = (ROOT / "simgpu" / "samples" / "two-models.ini").read_text()
    description.write_text(text.replace("[gpu 2]", f"{key}\n[gpu 2]"))
    subprocess.run([COMMAND, "create", description, tmp_path / "gpus"], check=True)
    result, milliseconds = Node(tmp_path / "gpus").program(cuda_frameworks.kernel_of_any_name).split()
    if answer is None:
        assert result == "500"
    else:
        assert result == "0"
        assert float(milliseconds) >= answer * 0.99, "ten kernels; a float has seven digits"


def test_invalid_kernel_duration_is_rejected(tmp_path: Path) -> None:
    description = tmp_path / "node.ini"
    text = (ROOT / "simgpu" / "samples" / "two-models.ini").read_text()
    description.write_text(text.replace("[gpu 2]", "kernel-duration = 0us\n[gpu 2]"))
    result = subprocess.run([COMMAND, "create", description, tmp_path / "gpus"], capture_output=True, text=True)
    assert result.returncode != 0
    assert 'invalid kernel-duration = "0us": write microseconds from 1us to 4096us' in result.stderr


def test_copies_and_fills_in_streams_write_memory(node: Node) -> None:
    node.program(cuda_streams.copies_and_fills)


def test_stream_waits_for_a_word_and_later_work_waits_too(node: Node) -> None:
    node.program(cuda_streams.waits_for_a_word)


def test_library_kernel_runs_in_the_context_of_its_stream(node: Node) -> None:
    """A module's kernel runs only where it was loaded. In a default stream both need a current context."""
    node.program(cuda_frameworks.kernel_of_a_library_where_its_stream_is)


def test_library_kernels_work_in_every_context(node: Node) -> None:
    node.program(cuda_frameworks.library_in_every_context)


def test_pointer_attributes_describe_the_memory(node: Node) -> None:
    node.program(cuda_frameworks.kinds_of_addresses)


def test_limits_and_cache_settings_are_stored(node: Node) -> None:
    node.program(cuda_frameworks.settings)


def test_capture_includes_copies_host_functions_and_joined_streams(node: Node) -> None:
    node.program(cuda_streams.capture_of_everything)


@pytest.mark.slow
def test_event_is_shared_with_another_process(node: Node) -> None:
    node.program(cuda_streams.shares_an_event)


def test_thread_may_end_before_its_stream_is_done(node: Node) -> None:
    node.program(cuda_streams.threads_that_end_early)


@pytest.mark.slow
def test_memory_is_allocated_in_blocks_if_described(tmp_path: Path) -> None:
    description = tmp_path / "node.ini"
    text = (ROOT / "simgpu" / "samples" / "two-models.ini").read_text()
    description.write_text(text.replace("[gpu 2]", "memory-block = 2MiB\n[gpu 2]"))
    subprocess.run([COMMAND, "create", description, tmp_path / "gpus"], check=True)
    Node(tmp_path / "gpus").program(cuda_frameworks.memory_in_blocks)
