"""Cutting as a part of setting up: what a pod has is never destroyed, be it computed on or not."""

from __future__ import annotations

from pathlib import Path

from tests.deviceplugin import simulated

PROGRAM = """
import asyncio
from deviceplugin.hardware.driver import Driver
from deviceplugin.hardware.nvml_mig import MigDriver
from deviceplugin.live import mig_part, setup
from deviceplugin.mig.partitioner import Partitioner
from gpushare.gpu import Mode
from gpushare.modes.assignment import Assignment, Partition
from gpushare.modes.hardware_gpu import HardwareGpu

opened = nvml.Nvml()
driver = MigDriver(opened)
uuid = opened.snapshot().gpus[0].uuid
held = set()

async def looked():
    pass

part = mig_part.MigPart(Driver(opened), Partitioner(driver), looked, lambda: frozenset(held))

def enter(**wanted):
    names = tuple((name.replace("_", "."), count) for name, count in wanted.items())
    layout = Assignment(Mode.MIG, partition=Partition(True, names))
    try:
        asyncio.run(part.enter(HardwareGpu(uuid, 0, mig_capable=True), layout))
    except setup.SetUpError as error:
        print("refused", error)
    return [one.uuid for one in driver.mig_devices(uuid)]

first = enter(**{"3g_20gb": 2})
held.add(first[0])
assert enter(**{"1g_5gb": 7}) == first
held.clear()
assert len(enter(**{"1g_5gb": 7})) == 7
"""


def test_a_device_that_a_pod_has_is_left_though_nobody_computes_on_it(gpus: Path) -> None:
    done = simulated.run(gpus, PROGRAM)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused ")
    assert done.stdout.count("refused") == 1
