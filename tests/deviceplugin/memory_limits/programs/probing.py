"""Programs that probe, as the agent does, what enforces memory limits on the first GPU, and print it."""

from __future__ import annotations

from pathlib import Path

import pynvml

from deviceplugin.hardware import nvml, nvml_limits

KERNEL = "6.14.0-29-generic"


def enforcement(root: str, pod_uid: str = "", kernel: str = KERNEL) -> None:
    """Print what enforces limits on the first GPU, with this directory as the host's cgroups."""
    uuid = nvml.Nvml().snapshot().gpus[0].uuid
    print([str(nvml_limits.EnforcementProbe(Path(root), pod_uid, kernel)(uuid))])


def in_mig_mode(root: str) -> None:
    uuid = nvml.Nvml().snapshot().gpus[0].uuid
    probe = nvml_limits.EnforcementProbe(Path(root), kernel=KERNEL)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    seen = []
    for mode in (0, 1, 0):
        pynvml.nvmlDeviceSetMigMode(handle, mode)
        seen.append(str(probe(uuid)))
    print(seen)
