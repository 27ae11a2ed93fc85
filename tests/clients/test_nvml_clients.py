"""Programs that show GPUs by NVML: alone they show the whole GPU, and in a share the share."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.clients import clients
from tests.clients.conftest import DESCRIPTION, Debian, Place
from tests.deviceplugin import simulated
from tests.interposer import container

pytestmark = pytest.mark.slow

SECONDS: Final = 30
SCRIPTS: Final = Path(sys.executable).parent
NVTOP: Final = "stty rows 40 cols 160; exec timeout --foreground 30 {} --no-color --delay 1"
COMMANDS: Final[dict[str, Callable[[Debian], list[str | Path]]]] = {
    "nvidia-smi": lambda debian: [debian.paths["nvidia-smi"]],
    # It draws on a terminal.
    "nvtop": lambda debian: ["script", "-qec", NVTOP.format(debian.paths["nvtop"]), "/dev/null"],
    "nvitop": lambda _: [sys.executable, SCRIPTS / "nvitop", "--once"],
    "gpustat": lambda _: [sys.executable, SCRIPTS / "gpustat", "--no-color", "--show-pid"],
    "py3nvml": lambda _: [sys.executable, SCRIPTS / "py3smi"],
}
ENDLESS: Final = {"nvtop"}
# The text by which each program that lists processes shows the one on the GPU.
PROCESSES: Final = {
    "nvitop": r"0 \d+ C root 1538MiB",
    "gpustat": r"root/\d+\(1538M\)",
    "py3nvml": r"0 root \d+ .* 1538MiB",
}
_DRAWING: Final = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[()][0-9A-B]|[=>])|[\x0e\x0f\r]")


def plain(output: bytes) -> str:
    """Return the output with single spaces between words."""
    return re.sub(" +", " ", _DRAWING.sub("", output.decode(errors="replace")))


def read_until(wanted: str, process: subprocess.Popen[str]) -> str:
    """Read the program's output until it has the wanted text, or the program ends."""
    assert process.stdout is not None
    output = b""
    while wanted not in plain(output) and (more := os.read(process.stdout.fileno(), 1 << 16)):
        output += more
    return plain(output)


async def shown(client: clients.Client, wanted: str, place: Place, debian: Debian) -> str:
    """Return the program's output."""
    process = place.start(COMMANDS[client.name](debian))
    with container.finishing(process):
        if client.name in ENDLESS:
            return await asyncio.to_thread(read_until, wanted, process)
        output, errors = await asyncio.to_thread(process.communicate, timeout=SECONDS)
    assert process.returncode == 0, output + errors
    assert "gpushare:" not in errors
    return plain(output.encode())


@pytest.mark.parametrize("client", clients.NVML, ids=lambda client: client.name)
async def test_a_program_shows_the_gpu(client: clients.Client, alone: Place, debian: Debian) -> None:
    text = await shown(client, client.alone, alone, debian)
    assert client.alone in text, text
    assert re.search(PROCESSES.get(client.name, ""), text), text


@pytest.mark.parametrize("client", clients.NVML, ids=lambda client: client.name)
async def test_a_program_in_a_share_shows_the_share(client: clients.Client, share: Place, debian: Debian) -> None:
    text = await shown(client, client.shared, share, debian)
    assert client.shared in text, text
    assert client.alone not in text
    assert re.search(PROCESSES.get(client.name, ""), text), text


def test_each_program_of_the_table_can_be_started() -> None:
    assert set(COMMANDS) == {client.name for client in clients.NVML}


async def test_nvidia_smi_answers_the_usual_questions(alone: Place, debian: Debian) -> None:
    program = debian.paths["nvidia-smi"]

    async def asked(*words: str) -> str:
        process = alone.start([program, *words])
        with container.finishing(process):
            output, _ = await asyncio.to_thread(process.communicate, timeout=SECONDS)
        assert process.returncode == 0, output
        return output

    assert re.fullmatch(rf"GPU 0: {clients.MODEL} \(UUID: GPU-[0-9a-f-]{{36}}\)\n", await asked("-L"))
    values = "memory.total,memory.used,power.limit,temperature.gpu,clocks.sm,ecc.mode.current,mig.mode.current"
    answer = await asked(f"--query-gpu={values}", "--format=csv,noheader")
    assert answer == "40960 MiB, 1538 MiB, 400.00 W, 30, 210 MHz, Enabled, Disabled\n"
    details = await asked("-q", "-d", "MEMORY,POWER")
    assert re.search(r"BAR1 Memory Usage\n +Total +: 65536 MiB", details)


@pytest.mark.skipif(os.geteuid() != 0, reason="nvidia-smi cuts GPUs for root alone")
def test_nvidia_smi_creates_mig_devices_that_others_show(debian: Debian, tmp_path: Path) -> None:
    simulated.build()
    (tmp_path / "node.ini").write_text(DESCRIPTION.format(driver=debian.driver))
    simulated.command("create", tmp_path / "node.ini", tmp_path / "gpus")
    smi = debian.paths["nvidia-smi"]
    cut: list[list[str | Path]] = [[smi, "-i", "0", "-mig", "1"], [smi, "mig", "-i", "0", "-cgi", "9,19", "-C"]]
    for command in (*cut, [smi, "-L"], COMMANDS["nvitop"](debian)):
        environment = {**simulated.environment(tmp_path / "gpus"), "LC_ALL": "C.UTF-8", "COLUMNS": "160"}
        ran = subprocess.run(command, env=environment, capture_output=True, timeout=SECONDS, check=False)
        text = plain(ran.stdout)
        assert ran.returncode == 0, text
        if command[1] == "-L":
            assert re.search(r"MIG 3g\.20gb Device 0: .*\n MIG 1g\.5gb Device 1: ", text)
    assert "0:0 3g.20gb @ GI/CI: 1/0 │ 0B / 19968MiB" in text
