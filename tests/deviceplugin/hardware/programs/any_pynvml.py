"""A program that reads everything the agent reads from the driver, with the first pynvml on the path."""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
from pathlib import Path

import deviceplugin
from deviceplugin.hardware import inventory, nvml, nvml_mig, nvml_topology
from tests.deviceplugin.hardware.programs import nvml_driver


def reads_everything(sys_root: str) -> None:
    """Read everything from four GPUs, the third of which has MIG devices."""
    for module in pkgutil.walk_packages(deviceplugin.__path__, "deviceplugin."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    print(repr(importlib.metadata.version("nvidia-ml-py")))
    nvml_driver.processes(None)
    driver = nvml.Nvml(sys_root=Path(sys_root))
    cutting = nvml_mig.MigDriver(driver)
    gpus = driver.snapshot().gpus
    cutting.set_mig_mode(gpus[2].uuid, enabled=True)
    geometry = cutting.mig_geometry(gpus[2].uuid)
    assert geometry is not None
    half = next(kind for kind in geometry.kinds if kind.gpu_slices == 3)
    made = cutting.create_gpu_instance(gpus[2].uuid, half, half.starts[0])
    cutting.create_compute_instance(gpus[2].uuid, made, 3)
    print(repr(driver.snapshot()))
    print(repr(driver.wait_for_xid(0)))
    print(repr(inventory.discover(driver, gpus, {})))
    print(repr(nvml_topology.paths([gpu.uuid for gpu in gpus])))
    for gpu in gpus:
        print(repr((len(driver.users(gpu.uuid)), driver.used_bytes(gpu.uuid), driver.recovery_action(gpu.uuid))))
        print(repr((driver.is_virtual(gpu.uuid), driver.minor_number(gpu.uuid), nvml_topology.clique(gpu.uuid))))
