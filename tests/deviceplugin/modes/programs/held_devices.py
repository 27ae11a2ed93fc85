"""Repartitions a GPU while a pod has one of its MIG devices."""

from __future__ import annotations

import asyncio

from deviceplugin.hardware import nvml
from deviceplugin.hardware.nvml import Driver
from deviceplugin.hardware.nvml_mig import MigDriver
from deviceplugin.hardware.partitioner import Partitioner
from deviceplugin.modes import setup
from gpushare.gpunode import Mode
from gpushare.modes.assignment import Assignment, Partition
from gpushare.modes.hardware_gpu import HardwareGpu


def cuts_beside_a_held_device() -> None:
    opened = nvml.Nvml()
    driver = MigDriver(opened)
    uuid = opened.snapshot().gpus[0].uuid
    held: set[str] = set()

    async def looked() -> None:
        pass

    part = setup.MigPart(Driver(opened), Partitioner(driver), looked, lambda: frozenset(held))

    def enter(profile: str, count: int) -> list[str]:
        layout = Assignment(Mode.MIG, partition=Partition(True, ((profile, count),)))
        try:
            asyncio.run(part.set_up(HardwareGpu(uuid, 0, mig_capable=True), layout))
        except setup.SetUpError as error:
            print("refused", error)
        return [device.uuid for device in driver.mig_devices(uuid)]

    first = enter("3g.20gb", 2)
    held.add(first[0])
    assert enter("1g.5gb", 7) == first
    held.clear()
    assert len(enter("1g.5gb", 7)) == 7
