"""`simgpu sysfs` writes the kernel's files about the GPUs."""

from __future__ import annotations

import pynvml as nvml

gpu = nvml.nvmlDeviceGetHandleByIndex


def pci_devices() -> None:
    nvml.nvmlInit()
    for i in range(4):
        pci_info = nvml.nvmlDeviceGetPciInfo(gpu(i))
        print(
            pci_info.busId.lower()[4:],
            hex(pci_info.pciDeviceId & 0xFFFF),
            f"0x{pci_info.pciDeviceId >> 16:04x}",
            "0x030200",
            nvml.nvmlDeviceGetNumaNodeId(gpu(i)),
        )
