"""The simulated CUDA driver as frameworks use it: attributes, kernels of any name, copies and words in streams, libraries."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.interposer import cuda_headers
from tests.simgpu.conftest import COMMAND, ROOT, Node
from tests.simgpu.programs import cuda_frameworks, cuda_streams

SIMULATED = "12.9"  # the headers that unsimulated.def is made of


def forms(kind: str) -> dict[str, tuple[str, int, bool]]:
    """Name, version and whether it is for per-thread streams, of each symbol in the driver's tables."""
    tables = "".join(path.read_text() for path in (ROOT / "simgpu" / "cuda" / "abi").glob("*.def"))
    rows = re.findall(rf"^{kind}\((\w+), (\w+), (\d+), ([01])", tables, re.MULTILINE)
    return {symbol: (name, int(version), per_thread == "1") for symbol, name, version, per_thread in rows}


@pytest.mark.slow
def test_it_exports_all_that_a_driver_of_its_version_exports() -> None:
    try:
        names = cuda_headers.functions(SIMULATED)
    except cuda_headers.UnavailableError as error:
        if cuda_headers.in_ci():
            raise
        pytest.skip(f"{error}: connect to a package index and run again")
    assert names - {*forms("ENTRY"), *forms("UNSIMULATED")} == set()


def test_nobody_is_given_a_form_that_is_not_simulated_where_there_is_one_that_is() -> None:
    simulated = forms("ENTRY").values()
    oldest = {name: min(form[1] for form in simulated if form[0] == name) for name, _, _ in simulated}
    newer = {
        symbol
        for symbol, (name, version, per_thread) in forms("UNSIMULATED").items()
        if name in oldest and (per_thread or version >= oldest[name])
    }
    assert newer == set()


def test_a_function_that_is_not_simulated_says_so(node: Node) -> None:
    node.program(cuda_frameworks.not_simulated)


def test_every_attribute_that_cuda_knows_has_a_value(node: Node) -> None:
    node.program(cuda_frameworks.every_attribute)


@pytest.mark.parametrize(
    ("key", "answer"), [("", 0.1), ("kernel-duration = 500us", 5), ("kernel-duration = none", None)]
)
def test_a_kernel_of_any_name_runs_as_long_as_the_description_says(
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


def test_a_kernels_duration_is_understood_or_refused(tmp_path: Path) -> None:
    description = tmp_path / "node.ini"
    text = (ROOT / "simgpu" / "samples" / "two-models.ini").read_text()
    description.write_text(text.replace("[gpu 2]", "kernel-duration = 0us\n[gpu 2]"))
    result = subprocess.run([COMMAND, "create", description, tmp_path / "gpus"], capture_output=True, text=True)
    assert result.returncode != 0
    assert 'kernel-duration = "0us" is not understood: write microseconds from 1us to 4096us' in result.stderr


def test_copies_and_fills_in_streams_do_what_they_say(node: Node) -> None:
    node.program(cuda_streams.copies_and_fills)


def test_a_stream_waits_for_a_word_and_what_is_behind_it_waits_too(node: Node) -> None:
    node.program(cuda_streams.waits_for_a_word)


def test_a_kernel_of_a_library_runs_where_its_stream_is(node: Node) -> None:
    """And a module's only where it was loaded; in a default stream both need a context that is current."""
    node.program(cuda_frameworks.kernel_of_a_library_where_its_stream_is)


def test_a_library_has_kernels_for_every_context(node: Node) -> None:
    node.program(cuda_frameworks.library_in_every_context)


def test_an_address_is_known_for_what_it_is(node: Node) -> None:
    node.program(cuda_frameworks.kinds_of_addresses)


def test_settings_are_remembered(node: Node) -> None:
    node.program(cuda_frameworks.settings)


def test_a_capture_takes_copies_and_functions_and_the_streams_that_join_it(node: Node) -> None:
    node.program(cuda_streams.capture_of_everything)


@pytest.mark.slow
def test_an_event_is_shared_with_another_process(node: Node) -> None:
    node.program(cuda_streams.shares_an_event)


def test_a_thread_may_end_before_its_stream_has_come_to_its_end(node: Node) -> None:
    node.program(cuda_streams.threads_that_end_early)


@pytest.mark.slow
def test_memory_is_given_out_in_blocks_where_the_description_says_so(tmp_path: Path) -> None:
    description = tmp_path / "node.ini"
    text = (ROOT / "simgpu" / "samples" / "two-models.ini").read_text()
    description.write_text(text.replace("[gpu 2]", "memory-block = 2MiB\n[gpu 2]"))
    subprocess.run([COMMAND, "create", description, tmp_path / "gpus"], check=True)
    Node(tmp_path / "gpus").program(cuda_frameworks.memory_in_blocks)
