"""Aliyun: GiB of memory and percent of the cores of a GPU, as resources of a container.

Sources: github.com/AliyunContainerService/gpushare-scheduler-extender at c0b61411, `docs/userguide.md` and
`pkg/utils/const.go` (GiB, unless the cluster is configured for MiB); Alibaba Cloud's Container Service for Kubernetes,
"Allocate computing power by scheduling shared GPU" (memory alone, or memory and `gpu-core.percentage`) and "Enable
multi-GPU sharing" (the pod label `aliyun.com/gpu-count` divides the memory among the GPUs).
"""

from __future__ import annotations

import re
from typing import Final

from gpushare import errors, pod
from gpushare.pod import PodJson
from gpushare.syntaxes import spelling
from gpushare.syntaxes.spelling import Shares, SpelledShare, Spelling

NAME: Final = "aliyun"
TITLE: Final = "Aliyun"

_MEMORY, _CORES, _TFLOPS = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "aliyun.com/gpu-core.tflops"
_COUNT: Final = "aliyun.com/gpu-count"
_MAX_GIB: Final = 1024  # no GPU has more, so a larger number is in MiB

# Its scheduler writes these annotations.
_RESULTS: Final = tuple(f"ALIYUN_COM_GPU_MEM_{each}" for each in ("ASSIGNED", "ASSUME_TIME", "DEV", "IDX", "POD"))

MARKS: Final = spelling.Marks(resources=(_MEMORY, _CORES, _TFLOPS), removed=_RESULTS)


def read(manifest: PodJson) -> Spelling:
    """Read a pod. Raises RequestError."""
    count = spelling.labels(manifest).get(_COUNT, "1")
    if not re.fullmatch(r"[1-9][0-9]{0,3}", count):
        raise errors.RequestError(_COUNT, count, "is not a number of GPUs: write 1 or more")
    gpus = int(count)
    shares: Shares = {}
    for container in pod.all_containers(manifest):
        if spelling.written(container, _TFLOPS):
            raise spelling.wrong(container, _TFLOPS, f"depends on the model of the GPU: write {_CORES}")
        memory, cores = spelling.whole_number(container, _MEMORY), spelling.percent(container, _CORES)
        if not memory and cores is None:
            continue
        if not memory:
            raise spelling.wrong(container, _CORES, f"gives no memory: add {_MEMORY}")
        if memory > _MAX_GIB * gpus:
            bits, unit = (30, "bytes") if memory >= 1 << 30 else (10, "MiB")
            raise spelling.wrong(
                container, _MEMORY, f"is a number of GiB: write {memory >> bits} if it is meant in {unit}"
            )
        if memory % gpus:
            raise spelling.wrong(container, _MEMORY, f"cannot be divided among {gpus} GPUs: write a multiple of {gpus}")
        shares[(spelling.name_of(container),)] = SpelledShare(
            cores, cores if cores != 100 else None, f"{memory // gpus}Gi", gpus
        )
    return Spelling(shares)
