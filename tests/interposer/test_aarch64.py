"""Tests the library for 64-bit Arm, cross-compiled and run in an emulator with simulated GPUs.

The emulated programs use the same arbiter, socket and pages.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare import contract
from lab import build as lab_build
from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import ROOT, Container, finishing
from tests.interposer.reference_arbiter import Misbehaviour

COMPILER = "aarch64-linux-gnu-gcc"
EMULATOR = "qemu-aarch64-static"
SYSTEM = "/usr/aarch64-linux-gnu"  # the cross-compiler's libc
HERE = Path(__file__).parent
LIMIT = 8 * MIB

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which(COMPILER) and shutil.which(EMULATOR) and Path(SYSTEM).is_dir()),
        reason=f"needs {COMPILER}, its libc and {EMULATOR}: "
        "apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static",
    ),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, as the images have it, the simulated drivers and the programs for 64-bit Arm."""
    directory = tmp_path_factory.mktemp("aarch64")
    library, simulated = ROOT / "build" / "images" / "interposer-aarch64", ROOT / "build" / "simgpu-aarch64"
    made = [library / "libgpushare.so", library / "gpushare-probe"]
    drivers = [simulated / name for name in ("libcuda.so.1", "libnvidia-ml.so.1")]
    simulated.mkdir(parents=True, exist_ok=True)
    locks = (lab_build.cache_directory() / "images" / "lock", simulated / "lock")  # the first is the images'
    with contextlib.ExitStack() as stack:
        for path in locks:
            path.parent.mkdir(parents=True, exist_ok=True)
            fcntl.flock(stack.enter_context(path.open("w")), fcntl.LOCK_EX)
        for part, build, *words in (
            ("interposer", library, f"CC={COMPILER}", *made),
            ("simgpu", simulated, f"CC={COMPILER} -DMAP_32BIT=0", "WERROR=-O0", *drivers),  # a third of the time
        ):
            command = ["make", "-s", "-C", ROOT / part, f"BUILD={build}", *words]
            subprocess.run(command, check=True, env={"PATH": os.environ["PATH"]})
    for path in (*made, *drivers):
        (directory / path.name).symlink_to(path)
    driver = ["-L", directory, "-l:libcuda.so.1", "-Wl,--allow-shlib-undefined", "-pthread"]
    for name, source in (
        ("direct", [HERE / "plugin.c", "-DPLUGIN_MAIN"]),
        ("threads", [HERE / "threads.c"]),
        ("load", [ROOT / "bench" / "launches" / "load.c"]),
    ):
        subprocess.run([COMPILER, "-std=c11", "-O1", "-o", directory / name, *source, *driver], check=True)
    for name, source, flags in (
        ("loader", "loader.c", ["-rdynamic"]),
        ("lazy.so", "apart.c", ["-shared", "-fPIC", "-Wl,-z,lazy"]),
        ("sealed.so", "apart.c", ["-shared", "-fPIC", "-Wl,-z,relro,-z,now"]),
        ("cuda.so", "plugin.c", ["-shared", "-fPIC", *driver]),
    ):
        subprocess.run([COMPILER, "-std=c11", "-O1", "-o", directory / name, HERE / source, *flags], check=True)
    return directory


def emulated(container: Container, built: Path, *words: str | Path, hooked: bool = True) -> tuple[Container, list[str]]:
    """Return the container and command for an Arm program, with or without the library preloaded."""
    variables = {"LD_LIBRARY_PATH": built, "SIMGPU_DIR": container.gpus}
    if hooked:
        variables["LD_PRELOAD"] = built / "libgpushare.so"
    flags = [word for name, value in variables.items() for word in ("-E", f"{name}={value}")]
    return replace(container, preload=()), [EMULATOR, "-L", SYSTEM, *flags, *map(str, words)]


def run(container: Container, built: Path, *words: str | Path, hooked: bool = True) -> str:
    box, command = emulated(container, built, *words, hooked=hooked)
    result = box.run(command, {"LD_LIBRARY_PATH": ""})
    assert result.returncode in (0, 1), result.stderr
    return result.stdout


@pytest.mark.parametrize("plugin", ["lazy.so", "sealed.so"])
def test_deepbind_plugin_keeps_its_functions_and_its_lookups_return_hooks(
    container: Container, make_arbiter: ArbiterMaker, built: Path, plugin: str
) -> None:
    make_arbiter(LIMIT)
    shown = run(container, built, built / "loader", "apart", built / plugin, "cuMemAlloc_v2")
    assert shown.splitlines() == ["the plugin's", "redirected"]
    assert run(container, built, built / "loader", "deepbind", built / "cuda.so", str(LIMIT + 1)) == "2\n"


@pytest.mark.parametrize("how", [["--direct"], []], ids=["dlsym", "cuGetProcAddress"])
def test_share_can_be_filled_to_the_byte(
    container: Container, make_arbiter: ArbiterMaker, built: Path, how: Sequence[str]
) -> None:
    make_arbiter(LIMIT)
    shown = run(container, built, built / "gpushare-probe", "--nvml", "--fill", *how)
    assert shown.splitlines()[-1] == f"filled {LIMIT}"
    assert f"total {LIMIT}" in shown
    assert f"total {4 << 30}" in run(container, built, built / "gpushare-probe", hooked=False)


def test_program_linked_with_cuda_is_limited(container: Container, make_arbiter: ArbiterMaker, built: Path) -> None:
    make_arbiter(LIMIT)
    assert run(container, built, built / "direct", str(LIMIT + 1)) == "2\n"
    assert run(container, built, built / "direct", str(LIMIT)) == "0\n"


def test_cuda_does_not_start_without_an_arbiter(container: Container, built: Path) -> None:
    assert run(container, built, built / "direct", "1") == "802\n"


def test_threads_launch_allocate_and_clean_up(container: Container, make_arbiter: ArbiterMaker, built: Path) -> None:
    make_arbiter(LIMIT)
    assert run(container, built, built / "threads", "3", "5").splitlines() == [str(LIMIT - MIB), "ended"]


def test_launches_wait_and_captured_launches_do_not(
    container: Container, make_arbiter: ArbiterMaker, built: Path
) -> None:
    """A launch's stream is its ninth parameter, on the stack. With a wrong one the launch would not be captured."""
    arbiter = make_arbiter(LIMIT, behaviour=Misbehaviour(grants=False))
    box, command = emulated(container, built, built / "load", "graph", "1000")
    with finishing(box.start(command, {"LD_LIBRARY_PATH": ""})) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(queue.Empty):
            arbiter.hears(contract.MESSAGE_WANT, seconds=0.05)
        now_ms = int(time.monotonic() * 1000)
        process.stdin.write(f"{now_ms} {now_ms} {now_ms}\n")
        process.stdin.flush()
        arbiter.hears(contract.MESSAGE_WANT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.05)
        arbiter.say(contract.MESSAGE_OPEN, 0, contract.LEASE_COUNTED, 1)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert re.fullmatch(r"\d+ [\d.]+ [\d.]+\n", output)


def test_library_is_as_self_contained_as_on_x86_64(built: Path) -> None:
    def read(*words: str) -> str:
        command = [*words, built / "libgpushare.so"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    dynamic = read("readelf", "-dW")
    assert re.findall(r"NEEDED.*\[(.*)\]", dynamic) == ["libc.so.6"]
    assert not re.search(r"\((INIT|FINI)", dynamic)
    assert set(re.findall(r"GLIBC_([\d.]+)", read("nm", "-D", "--undefined-only"))) == {"2.17"}
    for machine, library in (("AArch64", built / "libgpushare.so"), ("X86-64", ROOT / "build" / "libgpushare.so")):
        header = subprocess.run(["readelf", "-hW", library], check=True, capture_output=True, text=True).stdout
        assert machine in header
    exported = re.findall(r" [A-Zb-z] (?!GLIBC)([\w]+)", read("nm", "-D", "--defined-only"))
    other = subprocess.run(
        ["nm", "-D", "--defined-only", ROOT / "build" / "libgpushare.so"], check=True, capture_output=True, text=True
    ).stdout
    assert set(exported) == set(re.findall(r" [A-Zb-z] (?!GLIBC)(\w+)", other))
