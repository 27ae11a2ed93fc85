"""`simgpu sysfs` writes what the kernel would tell of the GPUs."""

from __future__ import annotations

import pynvml as nvml

gpu = nvml.nvmlDeviceGetHandleByIndex


def pci_devices() -> None:
    nvml.nvmlInit()
    for i in range(4):
        found = nvml.nvmlDeviceGetPciInfo(gpu(i))
        print(
            found.busId.lower()[4:],
            hex(found.pciDeviceId & 0xFFFF),
            f"0x{found.pciDeviceId >> 16:04x}",
            "0x030200",
            nvml.nvmlDeviceGetNumaNodeId(gpu(i)),
        )
