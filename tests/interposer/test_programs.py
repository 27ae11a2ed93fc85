"""Tests that limits apply to programs that start others, replace themselves, change users, or have many threads."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import DRIVERS, LIBRARY, LINK_CUDA, PROBE, Container, compiled, finishing
from tests.interposer.launching import lines_until
from tests.interposer.programs import starting
from tests.programs import command

HERE = Path(__file__).parent
LIMIT = 64 * MIB
NOBODY = 65534


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three C programs. The first finds the driver in /run/bin in any environment."""
    directory = tmp_path_factory.mktemp("programs")
    compiled("plugin.c", directory / "beside", "-DPLUGIN_MAIN", *LINK_CUDA, "-Wl,-rpath,/run/bin")
    compiled("threads.c", directory / "threads", *LINK_CUDA)
    compiled("forks.c", directory / "forks", *LINK_CUDA)
    return directory


@pytest.mark.parametrize("starter", starting.STARTERS)
def test_program_that_uses_the_gpu_starts_another_one(
    container: Container, make_arbiter: ArbiterMaker, starter: str
) -> None:
    arbiter = make_arbiter(LIMIT)
    container.program(starting.starts_another, starter, str(PROBE))
    assert arbiter.hellos == 2


def test_program_that_replaces_itself_releases_its_memory(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    with finishing(container.start([PROBE, "--allocate", str(10 * MIB), "--hold", "60"])) as beside:
        lines_until(beside, "holding")
        output = container.program(starting.becomes_another, str(PROBE))
    assert output.splitlines()[-1] == f"filled {54 * MIB}"


@pytest.mark.slow
@pytest.mark.parametrize(("threads", "rounds"), [(16, 10), (64, 3)])
def test_threads_launch_allocate_and_clean_up_as_they_end(
    container: Container, make_arbiter: ArbiterMaker, programs: Path, threads: int, rounds: int
) -> None:
    arbiter = make_arbiter(4 * LIMIT)
    result = container.run([programs / "threads", str(threads), str(rounds)])
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [str(4 * LIMIT - MIB), "ended"]
    assert arbiter.hellos == 1


@pytest.mark.slow
def test_forked_children_do_not_wait_for_the_parents_locks(
    container: Container, make_arbiter: ArbiterMaker, programs: Path
) -> None:
    arbiter = make_arbiter(LIMIT)
    children = 150
    result = container.run([programs / "forks", str(children)])
    assert (result.returncode, result.stdout) == (0, f"{LIMIT}\n"), result.stderr
    assert arbiter.hellos == 1 + children
    assert container.run([PROBE, "--allocate", str(LIMIT)]).returncode == 0


@pytest.mark.slow
def test_many_processes_of_a_container_start_at_once(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(LIMIT)
    many = 24
    processes = [container.start([PROBE, "--allocate", str(MIB), "--hold", "60"]) for _ in range(many)]
    try:
        for process in processes:
            lines_until(process, "holding")
        assert arbiter.charged() == [MIB] * many
        assert container.filled_bytes() == LIMIT - many * MIB
    finally:
        for process in processes:
            with finishing(process):
                pass


def test_static_program_runs_without_the_library(container: Container, tmp_path: Path) -> None:
    source = tmp_path / "static.c"
    source.write_text('#include <stdio.h>\nint main(void) { puts("ran"); return 0; }\n')
    subprocess.run(["gcc", "-static", "-o", tmp_path / "static", source], check=True)
    result = container.run([tmp_path / "static"])
    assert (result.returncode, result.stdout, result.stderr) == (0, "ran\n", "")


# Prepares the loader's preload file as the agent mounts it, and programs that another user can read.
_PREFACE = """
set -e
mkdir /run/etc /run/bin
cp -a /etc/. /run/etc
echo /run/bin/libgpushare.so > /run/etc/ld.so.preload
cp "$1" "$2" "$3" /run/bin
chmod 755 /run/bin/*
chmod u+s /run/bin/beside
shift 3
"""
_MOUNT = "mount --bind /run/etc /etc\n"


def as_nobody(
    container: Container, programs: Path, *command: str, mounted: bool, before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    script = _PREFACE + (_MOUNT if mounted else "") + 'exec "$@"\n'
    box = Container(container.arbiter_directory, container.gpus, preload=())
    files = [str(LIBRARY), str(programs / "beside"), str(DRIVERS / "libcuda.so.1")]
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    environment = {"LD_LIBRARY_PATH": "", **({"SIMGPU_DIR": "/run/gpus"} if before else {})}
    return box.run(["sh", "-c", script, "sh", *files, *before, *user, *command], environment)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create a setuid program")
@pytest.mark.parametrize("before", [[], ["env", "-i", "SIMGPU_DIR={gpus}"]], ids=["setuid", "setuid, no environment"])
def test_preload_file_covers_setuid_programs(
    container: Container, make_arbiter: ArbiterMaker, programs: Path, before: list[str]
) -> None:
    make_arbiter(LIMIT)
    words = [word.format(gpus=container.gpus) for word in before]
    for size, expected in ((LIMIT, "0\n"), (LIMIT + 1, "2\n")):
        result = as_nobody(container, programs, *words, "/run/bin/beside", str(size), mounted=True)
        assert result.stdout == expected, result.stderr


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")
def test_program_of_another_user_has_its_share(
    container: Container, make_arbiter: ArbiterMaker, programs: Path
) -> None:
    make_arbiter(LIMIT)
    gpus = container.gpus
    for path in [gpus, *gpus.iterdir()]:
        path.chmod(0o777)
    own = "mkdir /run/gpus; mount --bind $0 /run/gpus; chmod u-s /run/bin/beside; exec $@"
    words = ["/run/bin/beside", str(LIMIT + 1)]
    result = as_nobody(container, programs, *words, mounted=True, before=["sh", "-c", own, str(gpus)])
    assert result.stdout == "2\n", result.stderr
    words[1] = str(LIMIT)
    result = as_nobody(container, programs, *words, mounted=True, before=["sh", "-c", own, str(gpus)])
    assert result.stdout == "0\n", result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create a setuid program")
def test_ld_preload_does_not_cover_setuid_programs(
    container: Container, make_arbiter: ArbiterMaker, programs: Path
) -> None:
    """The agent therefore mounts the loader's file. This is where LD_PRELOAD stops working."""
    make_arbiter(LIMIT)
    words = ["env", "LD_PRELOAD=/run/bin/libgpushare.so", "/run/bin/beside", str(LIMIT + 1)]
    assert as_nobody(container, programs, *words, mounted=False).stdout == "0\n"


@pytest.mark.slow
def test_programs_leave_nothing_behind_however_they_end(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    for ending in starting.ENDINGS:
        container.run(command(starting.fills_and_ends, LIMIT, ending))
        assert container.run([PROBE, "--allocate", str(LIMIT)]).returncode == 0, ending
