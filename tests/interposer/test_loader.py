"""Tests that programs meet the limit however they find CUDA, and that other programs do not notice the library."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import (
    DRIVERS,
    LIBRARY,
    LINK_CUDA,
    PROBE,
    ROOT,
    Container,
    compiled,
    lines_of_the_library,
)
from tests.interposer.programs import loader

HERE = Path(__file__).parent
LIMIT = 8 * MIB
DYNAMIC, DEBUG, FOR_NOBODY = 2, 21, 0x6000000E  # ELF types of segments and dynamic entries


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled C programs of this folder."""
    directory = tmp_path_factory.mktemp("programs")
    (directory / "hidden").mkdir()
    hidden = "-rpath,$ORIGIN/hidden"
    compiled("plugin.c", directory / "direct", "-DPLUGIN_MAIN", *LINK_CUDA)
    compiled("plugin.c", directory / "plugin.so", *LINK_CUDA)
    compiled("plugin.c", directory / "hidden" / "libhidden.so", *LINK_CUDA)
    compiled("loader.c", directory / "loader", "-rdynamic", "-ldl", f"-Wl,--enable-new-dtags,{hidden}")
    compiled("loader.c", directory / "old-loader", "-ldl", f"-Wl,--disable-new-dtags,{hidden}")
    compiled("wrapper.c", directory / "wrapper.so", "-ldl")
    compiled("allocator.c", directory / "allocator.so", "-fno-builtin", "-ldl")
    return directory


@pytest.mark.slow
def test_program_linked_with_cuda_is_limited(container: Container, make_arbiter: ArbiterMaker, programs: Path) -> None:
    make_arbiter(LIMIT)
    assert container.run([programs / "direct", str(LIMIT + 1)]).stdout == "2\n"
    assert container.run([programs / "direct", str(LIMIT)]).stdout == "0\n"


def test_deepbind_plugin_is_limited(container: Container, make_arbiter: ArbiterMaker, programs: Path) -> None:
    make_arbiter(LIMIT)
    assert container.run([programs / "loader", "deepbind", programs / "plugin.so", str(LIMIT + 1)]).stdout == "2\n"
    assert container.run([programs / "loader", "deepbind", programs / "plugin.so", str(LIMIT)]).stdout == "0\n"


# How the plugin's calls are bound, and a library that it needs: one of the system, or its own.
PLUGINS = {
    "lazy binding": ["-Wl,-z,lazy"],
    "immediate binding with RELRO": ["-Wl,-z,relro,-z,now"],
    "needs a system library": ["-Wl,--no-as-needed", "-l:libstdc++.so.6"],
    "needs its own library": ["-Wl,--no-as-needed,-rpath,$ORIGIN/other:$ORIGIN/own", "-lown"],
}


@pytest.mark.slow
@pytest.mark.parametrize("flags", PLUGINS.values(), ids=PLUGINS.keys())
def test_deepbind_plugin_keeps_its_functions_and_its_lookups_return_hooks(
    container: Container, programs: Path, tmp_path: Path, flags: list[str]
) -> None:
    (tmp_path / "own").mkdir()
    other_names = [f"-D{name}=own_{name}" for name in ("version", "plugin_version", "plugin_find")]
    compiled("apart.c", tmp_path / "own" / "libown.so", *other_names)
    plugin = compiled("apart.c", tmp_path / "plugin.so", "-L", tmp_path / "own", *flags)
    result = container.run([programs / "loader", "apart", plugin, "cuMemAlloc_v2"])
    assert result.stdout.splitlines() == ["the plugin's", "redirected"], result.stderr
    free = replace(container, preload=()).run([programs / "loader", "apart", plugin, "cuMemAlloc_v2"])
    assert free.stdout.splitlines()[0] == "the plugin's"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["its RUNPATH", "LD_LIBRARY_PATH", "the plugin itself"])
def test_deepbind_plugin_is_limited_while_it_is_loaded(
    container: Container, make_arbiter: ArbiterMaker, programs: Path, tmp_path: Path, how: str
) -> None:
    """The needed library that calls CUDA may be found in different ways."""
    make_arbiter(LIMIT)
    own = compiled("plugin.c", tmp_path / "libown.so", f"-DPLUGIN_BEGINS={LIMIT + 1}", *LINK_CUDA)
    runpath = ["-Wl,-rpath,$ORIGIN"] if how == "its RUNPATH" else []
    needs = ["-Wl,--no-as-needed", "-L", tmp_path, "-lown", *runpath]
    plugin = own if how == "the plugin itself" else compiled("apart.c", tmp_path / "plugin.so", *needs)
    environment = {"LD_LIBRARY_PATH": f"{DRIVERS}:{tmp_path if how == 'LD_LIBRARY_PATH' else ''}"}
    result = container.run([programs / "loader", "begins", plugin], environment)
    assert result.stdout == "2\n", result.stderr


@pytest.mark.parametrize("loader", ["loader", "old-loader"], ids=["RUNPATH", "RPATH"])
def test_runpath_still_finds_libraries(container: Container, programs: Path, loader: str) -> None:
    result = container.run([programs / loader, "runpath", "libhidden.so"])
    assert result.returncode == 0, result.stderr


def test_lookup_by_version_does_not_bypass_the_library(container: Container, programs: Path) -> None:
    result = container.run([programs / "loader", "versioned", "libcuda.so.1"])
    assert result.stdout == "1\n", result.stderr


def test_function_that_the_driver_lacks_is_not_found(container: Container, programs: Path, tmp_path: Path) -> None:
    driver = (DRIVERS / "libcuda.so.1").read_bytes()
    assert driver.count(b"\0cuGraphAddNode_v3\0") > 0
    (tmp_path / "libcuda.so.1").write_bytes(driver.replace(b"\0cuGraphAddNode_v3\0", b"\0cuGraphAddNode_vX\0"))
    result = replace(container, drivers=tmp_path).run([programs / "loader", "absent", "libcuda.so.1"])
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("library", "init", "answer"),
    [("libcuda.so.1", "cuInit", "802\n"), ("libnvidia-ml.so.1", "nvmlDeviceGetMemoryInfo", "27\n")],
)
def test_main_program_handle_finds_a_globally_loaded_driver(
    container: Container, programs: Path, library: str, init: str, answer: str
) -> None:
    result = container.run([programs / "loader", "own-handle", library, init])
    assert (result.returncode, result.stdout) == (0, answer), result.stderr


def test_driver_in_another_namespace_is_hooked(container: Container, programs: Path) -> None:
    result = container.run([programs / "loader", "own-namespace", "libcuda.so.1"])
    assert result.stdout == "802\n", result.stderr


@pytest.mark.parametrize("ours_first", [True, False], ids=["ours first", "ours last"])
@pytest.mark.parametrize("how", ["--direct", "--nvml"])
def test_preloaded_library_that_wraps_dlsym_stays_in_the_chain(
    container: Container, make_arbiter: ArbiterMaker, programs: Path, ours_first: bool, how: str
) -> None:
    make_arbiter(LIMIT)
    wrapper = programs / "wrapper.so"
    both = replace(container, preload=(LIBRARY, wrapper) if ours_first else (wrapper, LIBRARY))
    result = both.run([PROBE, how, "--fill"])
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1] == f"filled {LIMIT}"
    lookups = int(result.stderr.split("wrapper: ")[1].split()[0])
    assert lookups >= 1, "the other library was bypassed"
    linked = both.run([programs / "direct", str(LIMIT + 1)])
    assert linked.stdout == "2\n", linked.stderr


@pytest.mark.parametrize("ours_first", [True, False], ids=["ours first", "ours last"])
@pytest.mark.parametrize("how", ["--direct", "--nvml"])
def test_preloaded_library_that_replaces_malloc_and_dlopen_works(
    container: Container, make_arbiter: ArbiterMaker, programs: Path, ours_first: bool, how: str
) -> None:
    make_arbiter(LIMIT)
    allocator = programs / "allocator.so"
    both = replace(container, preload=(LIBRARY, allocator) if ours_first else (allocator, LIBRARY))
    result = both.run([PROBE, how, "--fill"])
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1] == f"filled {LIMIT}"
    drivers = int(result.stderr.split(" early, ")[1].split()[0])
    assert drivers >= 1, "the other library was bypassed"


def test_every_variant_of_a_function_has_its_own_hook(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(loader.forms)


def test_lookup_of_cugetprocaddress_returns_its_hook(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(loader.searches_for_the_search)


def test_functions_without_a_hook_are_the_drivers(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(loader.homes)


def test_every_hook_is_found_by_name(container: Container, make_arbiter: ArbiterMaker) -> None:
    """Similar names are not found."""
    make_arbiter(LIMIT)
    table = (ROOT / "interposer" / "driver" / "hooks.def").read_text()
    names = re.findall(r"^(?:HOOK\(CUDA, |LAUNCH\(CUDA, |REFUSE\()(\w+),", table, re.MULTILINE)
    assert len(names) > 100
    container.program(loader.finds_every_hook, names)


PLAIN = {
    "shell": ["sh", "-c", "echo $((6 * 7))"],
    "ls": ["ls", "/proc/self/fd"],
    "python": [sys.executable, "-c", "import ssl, sqlite3, ctypes; print(ctypes.CDLL(None).getpid() > 0)"],
    "threads": [sys.executable, "-c", "import threading as t; x = t.Thread(target=print); x.start(); x.join()"],
    "fork": [sys.executable, "-c", "import os; p = os.fork(); p and os.waitpid(p, 0); print(p > 0)"],
    "build": ["sh", "-c", "echo 'int main(void) { return 0; }' | gcc -x c -o /dev/null -"],
}


# Disables checks of sanitizers that are irrelevant here: library order, and address space layout.
SANITIZERS = {"address": ["env", "ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0"], "thread": ["setarch", "-R"]}


@pytest.mark.slow
@pytest.mark.parametrize(("sanitizer", "before"), SANITIZERS.items(), ids=SANITIZERS.keys())
def test_programs_with_a_sanitizer_run_as_usual(
    container: Container, make_arbiter: ArbiterMaker, tmp_path: Path, sanitizer: str, before: list[str]
) -> None:
    """A sanitizer replaces functions that the library calls. They must not run before its constructor, which calls
    dlsym.
    """
    make_arbiter(5 * MIB)
    compiled("plugin.c", tmp_path / "program", f"-fsanitize={sanitizer}", "-DPLUGIN_MAIN", *LINK_CUDA)
    for size, expected in ((5 * MIB, "0\n"), (5 * MIB + 1, "2\n")):
        result = container.run([*before, tmp_path / "program", str(size)])
        assert result.stdout == expected, result.stderr


def without_debug(program: Path, path: Path) -> Path:
    """Return a copy without DT_DEBUG, the entry for debuggers that some linkers omit."""
    binary = bytearray(program.read_bytes())
    (headers,) = struct.unpack_from("<Q", binary, 32)
    (count,) = struct.unpack_from("<H", binary, 56)
    for header in range(headers, headers + count * 56, 56):
        kind, _, start, _, _, size = struct.unpack_from("<IIQQQQ", binary, header)
        for entry in range(start, start + size, 16) if kind == DYNAMIC else ():
            if struct.unpack_from("<q", binary, entry) == (DEBUG,):
                struct.pack_into("<q", binary, entry, FOR_NOBODY)
    assert binary != program.read_bytes()
    path.write_bytes(binary)
    path.chmod(0o755)
    return path


def test_program_without_dt_debug_is_limited(
    container: Container, make_arbiter: ArbiterMaker, programs: Path, tmp_path: Path
) -> None:
    make_arbiter(LIMIT)
    program = without_debug(programs / "direct", tmp_path / "program")
    assert container.run([program, str(LIMIT + 1)]).stdout == "2\n"
    assert container.run([program, str(LIMIT)]).stdout == "0\n"


@pytest.mark.slow
def test_program_started_through_the_loader_is_limited(
    container: Container, make_arbiter: ArbiterMaker, programs: Path
) -> None:
    make_arbiter(LIMIT)
    loader = re.search(
        r"interpreter: (.*)\]", subprocess.check_output(["readelf", "-lW", programs / "direct"], text=True)
    )
    assert loader is not None
    assert container.run([loader[1], programs / "direct", str(LIMIT + 1)]).stdout == "2\n"
    assert container.run([loader[1], programs / "direct", str(LIMIT)]).stdout == "0\n"


@pytest.mark.parametrize("command", PLAIN.values(), ids=PLAIN.keys())
def test_programs_without_cuda_do_not_notice_the_library(container: Container, command: list[str]) -> None:
    with_library = container.run(command)
    without = replace(container, preload=()).run(command)
    assert with_library.returncode == without.returncode == 0, with_library.stderr
    assert with_library.stdout == without.stdout
    assert lines_of_the_library(with_library.stderr) == []
