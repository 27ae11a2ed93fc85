"""Volcano vGPU: a number of GPUs, MiB or percent of their memory and percent of their cores, as HAMi has them.

`spec.schedulerName: volcano` stays: Volcano binds pods by node selector and extended resources, as gpushare wants, and
its jobs need it for their gangs.

Sources: github.com/Project-HAMi/volcano-vgpu-device-plugin at 4fb76ba1, `README.md`, `doc/config.md` and `examples`;
github.com/volcano-sh/volcano, `pkg/scheduler/api/devices/nvidia/vgpu/type.go`.
"""

from __future__ import annotations

from typing import Final

from gpushare import pod
from gpushare.pod import PodJson
from gpushare.syntaxes import hami, spelling
from gpushare.syntaxes.spelling import Marks, Shares, Spelling

NAME: Final = "volcano"
TITLE: Final = "Volcano vGPU"

_GPU: Final = hami.VirtualGpuResources(
    "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-memory-percentage", "volcano.sh/vgpu-cores"
)
_MODE: Final = "volcano.sh/vgpu-mode"

MARKS: Final = Marks(resources=tuple(_GPU), removed=(_MODE, hami.USE_TYPE, hami.NOT_TYPE))


def read(manifest: PodJson) -> Spelling:
    """Read a pod. Raises RequestError."""
    annotations = pod.annotations_of(manifest)
    shares: Shares = {
        (spelling.name_of(container),): amounts
        for container in pod.all_containers(manifest)
        if (amounts := hami.virtual_gpu(container, _GPU)) is not None
    }
    return Spelling(shares, {**hami.constraints(annotations), **hami.mode(annotations, _MODE)})
