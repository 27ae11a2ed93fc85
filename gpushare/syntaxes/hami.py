"""HAMi: a number of GPUs, MiB or percent of their memory and percent of their cores, as resources of each container.

Sources: github.com/Project-HAMi/HAMi at 4707fb02, `pkg/device/nvidia/device.go` (names, defaults: no memory means all
of it, and then all cores), `pkg/device/devices.go` (`CheckType`: a model is a part of its name in any case),
`pkg/util/types.go` and `examples/nvidia`. Volcano's vGPUs come from the same code, so `volcano` reads them with this.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from gpushare import contract, errors, pod
from gpushare.allocation import Isolation
from gpushare.pod import PodJson
from gpushare.syntaxes import spelling
from gpushare.syntaxes.spelling import Marks, SpelledShare, Spelling

NAME: Final = "hami"
TITLE: Final = "HAMi"


class VirtualGpuResources(NamedTuple):
    """The names of a virtual GPU's resources."""

    gpus: str
    memory: str
    percentage: str
    cores: str


_GPU: Final = VirtualGpuResources(
    "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"
)
_PRIORITY: Final = "nvidia.com/priority"  # 0 is high; 1 is low, and what containers have without it
USE_TYPE, NOT_TYPE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
_USE_UUID, _NOT_UUID, _MODE = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid", "nvidia.com/vgpu-mode"
_NUMA: Final = "nvidia.com/numa-bind"
_DOMAIN: Final = "hami.io/"
_RESULTS: Final = ("hami.io/vgpu-", "hami.io/bind-")  # its scheduler writes annotations that begin so
_GPU_POLICY, _NODE_POLICY = "hami.io/gpu-scheduler-policy", "hami.io/node-scheduler-policy"
_POLICIES: Final[Mapping[str, str]] = {"binpack": "pack", "spread": "spread"}
_MODES: Final[Mapping[str, Isolation]] = {"hami-core": Isolation.ARBITER, "mps": Isolation.MPS, "mig": Isolation.MIG}
_CORE_POLICY: Final = "GPU_CORE_UTILIZATION_POLICY"  # an environment variable of the container

MARKS: Final = Marks(
    resources=(_GPU.memory, _GPU.percentage, _GPU.cores, _PRIORITY),
    annotations=(USE_TYPE, NOT_TYPE, _USE_UUID, _NOT_UUID, _MODE, _NUMA, _GPU_POLICY, _NODE_POLICY),
    removed=(_DOMAIN,),
    schedulers=("hami-scheduler",),
    count=_GPU.gpus,
    ignored=("hami.io/webhook", "ignore"),
)


def read(manifest: PodJson) -> Spelling:
    """Read a pod. Raises RequestError."""
    annotations = pod.annotations_of(manifest)
    if (annotations.get(_NUMA) or "").strip().lower() in {"1", "t", "true"}:
        raise errors.RequestError(
            _NUMA, annotations[_NUMA], "has no equivalent: remove it, as gpushare prefers GPUs of one NUMA node anyway"
        )
    ours = {**constraints(annotations), **_uuids(annotations), **mode(annotations, _MODE), **_policy(annotations)}
    unknown = (
        key
        for key in annotations
        if key.startswith(_DOMAIN) and key not in MARKS.annotations and not key.startswith(_RESULTS)
    )
    return Spelling(dict(_shares(manifest)), ours, tuple(map(spelling.without_effect, unknown)))


def _shares(manifest: PodJson) -> Iterator[tuple[tuple[str, ...], SpelledShare]]:
    for container in pod.all_containers(manifest):
        if spelling.whole_number(container, _PRIORITY) not in {None, 1}:
            raise spelling.wrong(
                container, _PRIORITY, f"has no equivalent: remove it, and write {contract.LATENCY} to be served first"
            )
        amounts = virtual_gpu(container, _GPU)
        if amounts is not None and _core_policy(container) == "disable":
            amounts = dataclasses.replace(amounts, limit=None)
        if amounts is not None:
            yield (spelling.name_of(container),), amounts


def virtual_gpu(container: Mapping[str, Any], names: VirtualGpuResources) -> SpelledShare | None:
    """Return the share that a container asks for, None if it asks for none. Raises RequestError."""
    gpus = spelling.whole_number(container, names.gpus)
    memory = spelling.mebibytes(container, names.memory)
    part = spelling.percent(container, names.percentage)
    cores = spelling.percent(container, names.cores)
    if gpus == 0 or (gpus is None and not (memory or part or cores)):
        return None
    if memory and part:
        raise spelling.wrong(container, names.memory, f"cannot be combined with {names.percentage}: remove one")
    if cores is None and not memory and part in {None, 100}:
        return dataclasses.replace(spelling.WHOLE, gpus=gpus or 1)
    if not memory and not (cores == 100 and part in {None, 100}):
        memory = f"{part or 100}%"
    return SpelledShare(cores, cores if cores != 100 else None, memory, gpus or 1)


def constraints(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotation for the models that may be used; HAMi's and Volcano's are the same. Raises RequestError."""
    if unwanted := _items(annotations.get(NOT_TYPE)):
        raise errors.RequestError(
            NOT_TYPE, ", ".join(unwanted), f"has no equivalent: write the models to use into {contract.MODEL}"
        )
    wanted = (text.removeprefix("NVIDIA-") for text in _items(annotations.get(USE_TYPE)))
    models = ", ".join(f"*{text}*" for text in wanted)
    return {contract.MODEL: models} if models else {}


def mode(annotations: Mapping[str, str], key: str) -> dict[str, str]:
    """Return the annotation for the isolation. Raises RequestError."""
    text = annotations.get(key)
    if text is None:
        return {}
    if "hami-core" in _items(text):  # a list of modes that suit the pod
        text = "hami-core"
    if text not in _MODES:
        raise errors.RequestError(key, text, f"is unknown: write one of {', '.join(_MODES)}")
    return {contract.ISOLATION: _MODES[text].value}


def _uuids(annotations: Mapping[str, str]) -> dict[str, str]:
    pairs = ((contract.UUID, _USE_UUID), (contract.NOT_UUID, _NOT_UUID))
    return {ours: ",".join(items) for ours, theirs in pairs if (items := _items(annotations.get(theirs)))}


def _policy(annotations: Mapping[str, str]) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for key in (_GPU_POLICY, _NODE_POLICY):
        text = annotations.get(key)
        if text is None:
            continue
        if text not in _POLICIES:
            raise errors.RequestError(key, text, f"has no equivalent: write {' or '.join(_POLICIES)}, or remove it")
        if chosen.setdefault(contract.POLICY, _POLICIES[text]) != _POLICIES[text]:
            raise errors.RequestError(
                key, text, f"differs from {_GPU_POLICY}, and gpushare has one policy for nodes and GPUs: remove one"
            )
    return chosen


def _items(text: str | None) -> list[str]:
    return [item.strip() for item in (text or "").split(",") if item.strip()]


def _core_policy(container: Mapping[str, Any]) -> str:
    values = [entry.get("value") for entry in container.get("env") or [] if entry.get("name") == _CORE_POLICY]
    return str(values[-1] or "") if values else ""
