"""Tests the library with sanitizers while two shares use the same GPUs in every way, with the real arbiter.

`make sanitize` runs this for longer: GPUSHARE_SANITIZE_SECONDS.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpushare.allocation import GivenShare
from tests.deviceplugin import arbiter_node
from tests.interposer.conftest import MIB
from tests.interposer.container import BUILD, LIBRARY, LINK_CUDA, ROOT, Container, compiled, finishing
from tests.interposer.launching import line

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
SANITIZED = BUILD / "interposer" / "sanitized"
SECONDS = int(os.environ.get("GPUSHARE_SANITIZE_SECONDS", "3"))
FLAGS = {"address": "-fsanitize=address,undefined", "thread": "-fsanitize=thread"}
RUNTIMES = {"address": "libasan.so", "thread": "libtsan.so"}
OPTIONS = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1",
    "LSAN_OPTIONS": f"suppressions={HERE / 'leaks.supp'}:print_suppressions=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "history_size=5:exitcode=0",
}
# Matches the start of a report by any of the sanitizers.
REPORT = re.compile(r"^(?=WARNING: ThreadSanitizer: |==\d+==ERROR: \w+Sanitizer: |\S+: runtime error: )", re.MULTILINE)


@pytest.fixture(scope="module", autouse=True)
def _sanitized() -> None:
    subprocess.run(["make", "-s", "-C", ROOT / "interposer", "sanitized"], check=True, timeout=280)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program built for each sanitizer, whose runtime must belong to the program."""
    folder = tmp_path_factory.mktemp("everything")
    for sanitizer, flags in FLAGS.items():
        compiled("everything.c", folder / sanitizer, "-g", flags, *LINK_CUDA)
    return folder


@dataclass(frozen=True, slots=True)
class Ended:
    """A process's output and exit status."""

    output: str
    errors: str
    status: int


def wait_for_end(process: subprocess.Popen[str], timeout_seconds: float) -> Ended:
    output, errors = process.communicate(timeout=timeout_seconds)
    return Ended(output, errors, process.returncode)


def runtime(sanitizer: str) -> Path:
    """Return the sanitizer's runtime, which must be loaded before everything built with it."""
    result = subprocess.run(
        ["gcc", f"-print-file-name={RUNTIMES[sanitizer]}"], check=True, capture_output=True, text=True
    )
    return Path(result.stdout.strip()).resolve()


def reports(errors: str) -> list[str]:
    """Split the sanitizers' reports."""
    return REPORT.split(errors)[1:]


async def everything(gpus: Path, uuids: list[str], library: Path, program: Path, seconds: float) -> list[Ended]:
    """Run two shares that do everything on the same GPUs, restart the agent half-way, and return the results."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp")))
        async with arbiter_node.opened(directory) as node:
            box = Container(node.socket.parent, gpus, preload=())
            # setarch -R turns off address randomization, of which the thread sanitizer tolerates only a little.
            preload = f"LD_PRELOAD={runtime(program.name)} {library}"
            command = ["setarch", "-R", "env", preload, str(program), str(seconds)]
            processes = []
            for name in ("one", "two"):
                node.add_pod(name, GivenShare(("main",), tuple(uuids), 50, 100, 256 * MIB))
                environment = {"TEST_POD": name, "TEST_CONTAINER": "main", **OPTIONS}
                processes.append(stack.enter_context(finishing(box.start(command, environment))))
            for process in processes:
                await asyncio.to_thread(line, process)  # wait until it has begun, or ended
            ends = asyncio.gather(*(asyncio.to_thread(wait_for_end, process, seconds + 120) for process in processes))
            await asyncio.sleep(seconds / 2)
            await node.stop()
            await node.start()
            return await ends


@pytest.mark.parametrize("sanitizer", sorted(FLAGS))
async def test_sanitizers_report_nothing_in_the_library(
    gpus: Path, uuids: list[str], programs: Path, sanitizer: str
) -> None:
    for ended in await everything(gpus, uuids, SANITIZED / sanitizer / LIBRARY.name, programs / sanitizer, SECONDS):
        assert not reports(ended.errors), "\n".join(reports(ended.errors))
        assert ended.status == 0, ended.errors
        assert all(int(way.split()[0]) > 0 for way in ended.output.splitlines()), ended.output


@pytest.mark.parametrize("sanitizer", sorted(FLAGS))
async def test_sanitizers_report_a_planted_fault(gpus: Path, uuids: list[str], programs: Path, sanitizer: str) -> None:
    library = SANITIZED / sanitizer / "planted" / LIBRARY.name
    errors = "".join(ended.errors for ended in await everything(gpus, uuids, library, programs / sanitizer, 1))
    assert any("__wrap_symbols_answer" in report for report in reports(errors)), errors
