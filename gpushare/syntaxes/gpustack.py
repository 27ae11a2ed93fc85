"""GPUStack: tenths of a GPU, or a slice of one with its own memory and cores, as resources of a container.

Sources: github.com/gpustack/gpustack-operator at 13bd905d, `docs/accelerator-requests.md`: ten shares per GPU, which
have no limits there; a slice is of one GPU and names its memory once, in percent or MiB; its cores are a cap, 100 if
unset; the operator computes the `.units`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpushare import contract, pod
from gpushare.pod import PodJson
from gpushare.syntaxes import spelling
from gpushare.syntaxes.spelling import Marks, Shares, SpelledShare, Spelling

NAME: Final = "gpustack"
TITLE: Final = "GPUStack"

_SHARED, _SLICED, _PARTITIONED = "nvidia.com/gpu.shared", "nvidia.com/gpu.sliced", "nvidia.com/gpu.partitioned"
_PERCENTAGE, _MIB, _CORES = f"{_SLICED}.memory-percentage", f"{_SLICED}.memory-mib", f"{_SLICED}.cores-percentage"
_PROFILE: Final = f"{_PARTITIONED}.mig-"
_VISIBILITY: Final = "device.gpustack.ai/nvidia.visibility"
_SHARES_PER_GPU: Final = 10

MARKS: Final = Marks(resources=(_SHARED, _SLICED, f"{_SLICED}.", _PARTITIONED, f"{_PARTITIONED}.", _VISIBILITY))


def read(manifest: PodJson) -> Spelling:
    """Read a pod. Raises RequestError."""
    shares: Shares = {}
    notes = []
    for container in pod.all_containers(manifest):
        _refuse(container)
        name = (spelling.name_of(container),)
        if shared := spelling.whole_number(container, _SHARED):
            if spelling.written(container, _SLICED):
                raise spelling.wrong(container, _SHARED, f"cannot be combined with {_SLICED}: remove one")
            if shared > _SHARES_PER_GPU:
                raise spelling.wrong(
                    container, _SHARED, f"is more than the {_SHARES_PER_GPU} shares of a GPU: write {contract.GPUS}"
                )
            shares[name] = SpelledShare(request=shared * (100 // _SHARES_PER_GPU))
            notes.append(f"{_SHARED} has no memory limit in GPUStack: here it is {shared * 10} % of the GPU's memory")
        elif any(spelling.written(container, key) for key in (_SLICED, _PERCENTAGE, _MIB, _CORES)):
            shares[name] = _slice(container)
    return Spelling(shares, notes=tuple(dict.fromkeys(notes)))


def _slice(container: Mapping[str, Any]) -> SpelledShare:
    if spelling.whole_number(container, _SLICED) != 1:
        raise spelling.wrong(container, _SLICED, f"must be 1: a slice is of one GPU; write {contract.GPUS} for more")
    memory, part = spelling.mebibytes(container, _MIB), spelling.percent(container, _PERCENTAGE)
    if bool(memory) is (part is not None):
        raise spelling.wrong(container, _SLICED, f"needs either {_PERCENTAGE} or {_MIB}")
    cores = spelling.percent(container, _CORES)
    return SpelledShare(cores, cores if cores != 100 else None, memory or f"{part}%")


def _refuse(container: Mapping[str, Any]) -> None:
    """Raise RequestError for a partition, and for a container that sees the GPU of another one."""
    for side in (container.get("resources") or {}).values():
        for key in side if isinstance(side, Mapping) else ():
            if key.startswith(_PROFILE):
                instead = f"nvidia.com/mig-{key.removeprefix(_PROFILE)}"
                raise spelling.wrong(container, key, f"is not a share: write {instead} for a MIG device from gpushare")
    if spelling.written(container, _PARTITIONED):
        raise spelling.wrong(container, _PARTITIONED, "names no profile: write nvidia.com/mig-1g.10gb and the like")
    if spelling.written(container, _VISIBILITY):
        raise spelling.wrong(
            container, _VISIBILITY, f"has no equivalent: name all containers that use the share in {contract.CONTAINER}"
        )
