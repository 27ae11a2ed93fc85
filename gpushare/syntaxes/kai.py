"""KAI: a fraction of a GPU or MiB of its memory, as annotations of the pod, or quantities of memory of one container.

A fraction guarantees compute and memory in gpushare; KAI counts it as memory. The label `kai.scheduler/queue` stays,
as it does no harm.

Sources: github.com/kai-scheduler/KAI-Scheduler at d5bc503a, `pkg/common/constants/constants.go`, `docs/gpu-sharing` and
`pkg/binder/plugins/gpusharing/gpu-request/gpu_request_validator.go` (the first container unless one is named; a
fraction below 1; the `mps` annotation); github.com/kai-scheduler/kai-gpu-fractioning at 0249ecec, `README.md` (the keys
of a container: request and limit default to each other, at least 1 MiB).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gpushare import contract, errors, pod, quantity
from gpushare.allocation import Isolation
from gpushare.pod import PodJson
from gpushare.syntaxes import spelling
from gpushare.syntaxes.spelling import Marks, Shares, SpelledShare, Spelling

NAME: Final = "kai"
TITLE: Final = "KAI"

_FRACTION, _MEMORY, _DEVICES = "gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"
_CONTAINER: Final = "gpu-fraction-container-name"
_PER_CONTAINER: Final = "nvidia.com/container."
_MPS: Final = "mps"
_WHOLE: Final = "nvidia.com/gpu"

MARKS: Final = Marks(
    annotations=(_FRACTION, _MEMORY, _DEVICES, _PER_CONTAINER),
    # The last two are what KAI writes.
    removed=(_CONTAINER, _MPS, "runai/shared-gpu-configmap", "received-resource-type"),
    schedulers=("kai-scheduler",),
)

_KEY: Final = re.compile(
    r"nvidia\.com/container\.(?P<name>.+?)\.(?P<what>gpu-memory\.(?:request|limit)|gpu-compute\.mode)"
)
# KAI's scheduler writes these when it binds a pod.
_RESULT: Final = re.compile(r"nvidia\.com/container\..+\.(gpus\.devices|gpu-compute\.portion)")
_MODES: Final[Mapping[str, Isolation]] = {"time-slicing": Isolation.ARBITER, "sm-sharing": Isolation.MPS}


def read(manifest: PodJson) -> Spelling:
    """Read a pod. Raises RequestError."""
    annotations = pod.annotations_of(manifest)
    shares, isolation = _per_container(manifest)
    by_pod = [key for key in (_FRACTION, _MEMORY, _DEVICES) if key in annotations]
    if shares and by_pod:
        raise _wrong(annotations, by_pod[0], f"cannot be combined with {_PER_CONTAINER}NAME.gpu-memory: remove one")
    if by_pod:
        shares = {(_container(manifest),): _of_pod(annotations)}
    if not shares:
        key = next(key for key in annotations if key.startswith(_PER_CONTAINER))
        raise _wrong(annotations, key, f"asks for no GPU without an amount: add {_FRACTION} or {_MEMORY}")
    for container in pod.all_containers(manifest):
        if spelling.whole_number(container, _WHOLE):
            raise spelling.wrong(container, _WHOLE, "cannot be combined with a fraction of a GPU: remove one")
    if annotations.get(_MPS) == "true":
        isolation = Isolation.MPS
    return Spelling(shares, {contract.ISOLATION: isolation.value} if isolation else {})


def _of_pod(annotations: Mapping[str, str]) -> SpelledShare:
    if _FRACTION in annotations and _MEMORY in annotations:
        raise _wrong(annotations, _FRACTION, f"cannot be combined with {_MEMORY}: remove one")
    devices = annotations.get(_DEVICES, "1")
    if not re.fullmatch(r"[1-9][0-9]{0,3}", devices):
        raise _wrong(annotations, _DEVICES, "is not a number of GPUs: write 1 or more")
    if _MEMORY in annotations:
        if not re.fullmatch(r"0*[1-9][0-9]{0,9}", annotations[_MEMORY]):
            raise _wrong(annotations, _MEMORY, "is not a number of MiB: write a whole number such as 2000")
        if mistake := spelling.bytes_by_mistake(int(annotations[_MEMORY])):
            raise _wrong(annotations, _MEMORY, mistake)
        return SpelledShare(memory=quantity.format_exactly(int(annotations[_MEMORY]) << 20), gpus=int(devices))
    if _FRACTION not in annotations:
        raise _wrong(annotations, _DEVICES, f"asks for no GPU by itself: add {_FRACTION} or {_MEMORY}")
    try:
        value = quantity.parse(annotations[_FRACTION])
    except errors.QuantityError:
        value = None
    if value is None or not 0 < value < 1:
        raise _wrong(annotations, _FRACTION, "is not a fraction of a GPU: write a number between 0 and 1")
    if (value * 100).denominator != 1:
        raise _wrong(annotations, _FRACTION, "is finer than 0.01 of a GPU, gpushare's smallest step: round it")
    return SpelledShare(request=int(value * 100), gpus=int(devices))


def _container(manifest: PodJson) -> str:
    annotations, names = pod.annotations_of(manifest), pod.container_names(manifest)
    name = annotations.get(_CONTAINER) or pod.default_container(manifest)
    if name not in names:
        raise _wrong(annotations, _CONTAINER, f"is no container of the pod: it has {', '.join(names)}")
    return name


def _per_container(manifest: PodJson) -> tuple[Shares, Isolation | None]:
    """Return the shares of containers that have their own keys, and the isolation that they request."""
    annotations, names = pod.annotations_of(manifest), pod.container_names(manifest)
    memory: dict[str, dict[str, int]] = {}
    isolations: dict[Isolation, str] = {}
    for key, text in annotations.items():
        if not key.startswith(_PER_CONTAINER) or _RESULT.fullmatch(key):
            continue
        match = _KEY.fullmatch(key)
        if match is None:
            known = "gpu-memory.request, gpu-memory.limit or gpu-compute.mode"
            raise _wrong(annotations, key, f"has no equivalent: write {_PER_CONTAINER}NAME. and {known}")
        if match["name"] not in names:
            raise _wrong(annotations, key, f"is for no container of the pod: it has {', '.join(names)}")
        if match["what"] == "gpu-compute.mode":
            if text not in _MODES:
                raise _wrong(annotations, key, f"is unknown: write {' or '.join(_MODES)}")
            isolations[_MODES[text]] = key
        else:
            memory.setdefault(match["name"], {})[match["what"]] = _bytes(annotations, key)
    if len(isolations) > 1:
        key = [*isolations.values()][-1]
        raise _wrong(annotations, key, "differs from another container's: all shares of a pod have one isolation")
    shares: Shares = {(name,): _of_container(annotations, name, memory[name]) for name in names if name in memory}
    return shares, next(iter(isolations), None)


def _of_container(annotations: Mapping[str, str], name: str, memory: Mapping[str, int]) -> SpelledShare:
    least, most = min(memory.values()), max(memory.values())
    if memory.get("gpu-memory.limit", most) < most:
        raise _wrong(annotations, f"{_PER_CONTAINER}{name}.gpu-memory.limit", "is less than the request: raise it")
    return SpelledShare(
        memory=quantity.format_exactly(least), memory_limit=quantity.format_exactly(most) if most > least else ""
    )


def _bytes(annotations: Mapping[str, str], key: str) -> int:
    try:
        value = quantity.parse_bytes(annotations[key])
    except errors.QuantityError:
        value = 0
    if value < 1 << 20:
        raise _wrong(annotations, key, 'is not an amount of memory of at least 1Mi: write it as "8Gi"')
    return value


def _wrong(annotations: Mapping[str, str], key: str, remedy: str) -> errors.RequestError:
    return errors.RequestError(key, annotations.get(key) or "", remedy)
