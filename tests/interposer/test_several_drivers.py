"""Tests programs that try several copies of the driver: in a share they find the same one as without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import DRIVERS, LINK_CUDA, Container, compiled, complaints_of_the_library

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
LIMIT = 512 * MIB
CUDA, NVML = "libcuda.so.1", "libnvidia-ml.so.1"
USED = {CUDA: "used: 0 0 0 2 0 512 MiB", NVML: "used: 0 0 512 MiB"}
FAILS = {CUDA: 34, NVML: 9}
REFUSED = {CUDA: 801, NVML: 3}
VERSION = {CUDA: 0, NVML: 1}  # NVML reports it only after initialization


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program, and with a stub and another copy of each library."""
    folder = tmp_path_factory.mktemp("several")
    compiled("tries.c", folder / "tries", "-ldl")
    compiled("plugin.c", folder / "plugin.so", *LINK_CUDA)
    compiled("interposes.c", folder / "interposes.so", "-ldl")
    for name in (CUDA, NVML):
        for kind in ("stub", "compat"):
            (folder / kind).mkdir(exist_ok=True)
        compiled("stub.c", folder / "stub.so", f"-Wl,-soname,{name}").rename(folder / "stub" / name)
        (folder / "compat" / f"{name}.565").write_bytes((DRIVERS / name).read_bytes())
    return folder


Try = Callable[..., tuple[list[str], list[str]]]


@pytest.fixture
def tries(container: Container, make_arbiter: ArbiterMaker, files: Path) -> Try:
    """Run the program in a share. Returns its lines and the library's."""
    make_arbiter(LIMIT)

    def run(
        *libraries: str, before: tuple[Path, ...] = (), after: tuple[Path, ...] = ()
    ) -> tuple[list[str], list[str]]:
        where = replace(container, preload=(*before, *container.preload, *after))
        result = where.run([files / "tries", *(name.replace("@", f"{files}/") for name in libraries)])
        assert result.returncode == 0, (result.stdout, result.stderr)
        return result.stdout.splitlines(), complaints_of_the_library(result.stderr)

    return run


@pytest.mark.parametrize("name", [CUDA, NVML])
def test_driver_is_found_after_a_stub_was_tried(tries: Try, name: str) -> None:
    said, lines = tries(f"@stub/{name}", name)
    assert said == [f"started: {FAILS[name]}", "started: 0", USED[name]]
    assert lines == []


def test_linked_plugin_finds_the_driver_after_a_stub_is_closed(tries: Try) -> None:
    """The plugin does not look the driver up itself."""
    assert tries(f"+@stub/{CUDA}", "!@plugin.so") == (["started: 34", "plugin: 0 2"], [])
    assert tries(f"?@stub/{CUDA}", "!@plugin.so") == (["asked: 34", "plugin: 0 2"], [])


@pytest.mark.parametrize("ours_first", [True, False], ids=["ours first", "ours last"])
def test_library_that_replaces_lookup_results_works_with_ours(tries: Try, files: Path, ours_first: bool) -> None:
    """Checkpoint libraries do this: they replace the functions that a lookup returns."""
    other = (files / "interposes.so",)
    said, lines = tries(f"*{CUDA}", after=other) if ours_first else tries(f"*{CUDA}", before=other)
    assert said[0] == "found: 0 0 2 512 MiB"
    assert int(said[1].split()[1]) >= (0 if ours_first else 2), "the other library must see the allocations"
    assert lines == []


@pytest.mark.parametrize("name", [CUDA, NVML])
def test_copy_that_only_reports_its_version_is_not_kept(tries: Try, name: str) -> None:
    said, lines = tries(f"?@stub/{name}", f"?{name}", f"@compat/{name}.565")
    assert said == [f"asked: {FAILS[name]}", f"asked: {VERSION[name]}", "started: 0", USED[name]]
    assert lines == []


@pytest.mark.parametrize("name", [CUDA, NVML])
def test_copy_opened_by_path_is_used(tries: Try, name: str) -> None:
    assert tries(f"@compat/{name}.565") == (["started: 0", USED[name]], [])


@pytest.mark.parametrize("name", [CUDA, NVML])
def test_first_copy_that_initializes_is_used(tries: Try, name: str) -> None:
    every = [f"@nowhere/{name}", f"@stub/{name}", f"@stub/{name}", name]
    said, lines = tries(*every)
    assert said == ["not there", *[f"started: {FAILS[name]}"] * 2, "started: 0", USED[name]]
    assert lines == []


@pytest.mark.parametrize("name", [CUDA, NVML])
@pytest.mark.parametrize("first", ["+", ""], ids=["closed again", "in use"])
def test_second_copy_is_refused_with_a_message_and_the_first_still_works(
    tries: Try, files: Path, name: str, first: str
) -> None:
    second = f"@compat/{name}.565"
    said, lines = tries(f"{first}{name}", *([] if first == "+" else [f"={second}"]), f"+{second}", name)
    used = [] if first == "+" else [USED[name], f"started: {REFUSED[name]}", USED[name]]
    assert said[: 1 + len(used)] == ["started: 0", *used]
    assert said[1 + len(used) :] == [f"started: {REFUSED[name]}", "started: 0", USED[name]]
    assert lines == [
        f"gpushare: a second copy of {name} is refused ({files}/compat/{name}.565): this process already uses "
        f"{DRIVERS}/{name}; make the program load only one of them"
    ]
