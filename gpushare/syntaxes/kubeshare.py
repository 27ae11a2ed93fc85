"""KubeShare: guaranteed compute, its limit and bytes of memory, as labels of a pod or annotations of a SharePod.

All containers of the pod use the share together. A SharePod (KubeShare 1) is a pod of another kind, so only
`kubectl gpushare migrate` sees it; its annotations mean the same as the labels of KubeShare 2.

Sources: github.com/NTHU-LSALAB/KubeShare, `README.md` at release-1.0 (23fe943c: annotations, labels of locality) and at
master (a862311c: labels); `pkg/scheduler/pod.go` and `pod_group.go` (whole numbers above 1 are whole GPUs; a group's
least is its headcount times the threshold, rounded).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Final

from gpushare import contract, errors, pod, quantity
from gpushare.pod import PodJson
from gpushare.syntaxes import spelling
from gpushare.syntaxes.spelling import SpelledShare, Spelling

NAME: Final = "kubeshare"
TITLE: Final = "KubeShare"
KIND: Final = "SharePod"
API_GROUP: Final = "kubeshare.nthu"

_LABELS, _ANNOTATIONS = "sharedgpu/", "kubeshare/"
_REQUEST, _LIMIT, _MEMORY, _MODEL = "gpu_request", "gpu_limit", "gpu_mem", "gpu_model"
_AMOUNTS: Final = (_REQUEST, _LIMIT, _MEMORY)
_LOCALITY: Final[Mapping[str, str]] = {
    "sched_affinity": contract.AFFINITY,
    "sched_anti-affinity": contract.ANTI_AFFINITY,
    "sched_exclusion": contract.EXCLUSION,
}
_GROUP, _HEADCOUNT, _THRESHOLD, _PRIORITY = "group_name", "group_headcount", "group_threshold", "priority"
_RESULTS: Final = ("gpu_uuid", "cell_id", "gpu_manager_port")  # its scheduler writes these
_KNOWN: Final = (*_AMOUNTS, _MODEL, *_LOCALITY, _GROUP, _HEADCOUNT, _THRESHOLD, _PRIORITY, *_RESULTS)

MARKS: Final = spelling.Marks(
    labels=tuple(_LABELS + key for key in _AMOUNTS),
    annotations=tuple(_ANNOTATIONS + key for key in _AMOUNTS),
    removed=(_LABELS, _ANNOTATIONS),
    schedulers=("kubeshare-scheduler",),
)


def read(manifest: PodJson) -> Spelling:
    """Read a pod, or a SharePod that was made a pod. Raises RequestError."""
    there = _Values(manifest)
    if key := there.key("GPUID"):
        raise errors.RequestError(
            key, there.values[key], f"has no equivalent: write the GPU's UUID into {contract.UUID}"
        )
    ours = {ours: text for name, ours in _LOCALITY.items() if (text := there.text(name))}
    if model := there.text(_MODEL):
        ours[contract.MODEL] = model
    notes = list(_group(there, ours))
    if key := there.key(_PRIORITY):
        notes.append(f"{spelling.without_effect(key)}: write spec.priorityClassName")
    notes += [spelling.without_effect(key) for key in there.values if key.partition("/")[2] not in _KNOWN]
    containers = tuple(map(spelling.name_of, pod.containers(manifest)))
    return Spelling({containers: _amounts(there)}, ours, tuple(notes))


class _Values:
    """The pod's labels and annotations of KubeShare, with either prefix."""

    def __init__(self, manifest: PodJson) -> None:
        both = {**spelling.labels(manifest), **pod.annotations_of(manifest)}
        self.values = {key: text for key, text in both.items() if key.startswith((_LABELS, _ANNOTATIONS))}

    def key(self, name: str) -> str:
        """Return the full key; empty if it is not there."""
        return next((key for key in (_LABELS + name, _ANNOTATIONS + name) if key in self.values), "")

    def text(self, name: str) -> str:
        return self.values.get(self.key(name), "")

    def number(self, name: str) -> Fraction:
        """Return a number that is there. Raises RequestError."""
        if not re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18})?", self.text(name)):
            raise self.wrong(name, "is not a number: write digits, such as 1 or 0.5")
        return Fraction(self.text(name))

    def wrong(self, name: str, remedy: str) -> errors.RequestError:
        return errors.RequestError(self.key(name), self.text(name), remedy)


def _amounts(there: _Values) -> SpelledShare:
    limit_key = there.key(_LIMIT)
    request = there.number(_REQUEST) if there.key(_REQUEST) else Fraction(0)
    limit = there.number(_LIMIT) if limit_key else max(request, Fraction(1))
    if limit_key and not limit:
        raise there.wrong(_LIMIT, "lets the pod compute nothing: write a limit above 0")
    if request > limit or (limit > 1 and request != limit):
        raise there.wrong(_LIMIT, "is less than the request, or another number of whole GPUs: make them equal")
    if request > 1:
        if request.denominator != 1:
            raise there.wrong(_REQUEST, "is not a number of whole GPUs: write a whole number, or 1 or less")
        return SpelledShare(request=100, gpus=int(request))
    for name, value in ((_REQUEST, request), (_LIMIT, limit)):
        if (value * 100).denominator != 1:
            raise there.wrong(name, "is finer than 0.01 of a GPU, gpushare's smallest step: round it")
    memory = there.number(_MEMORY) if there.key(_MEMORY) else Fraction(0)
    if memory.denominator != 1:
        raise there.wrong(_MEMORY, "is not a number of bytes: write a whole number")
    if not request and not memory:
        name = _LIMIT if limit_key else _REQUEST
        prefix = there.key(name).removesuffix(name)
        raise there.wrong(name, f"gives no memory: add {prefix}{_MEMORY}, or {prefix}{_REQUEST} above 0")
    text = quantity.format_exactly(int(memory)) if memory else ""
    return SpelledShare(int(request * 100), int(limit * 100) if limit < 1 else None, text)


def _group(there: _Values, ours: dict[str, str]) -> Iterator[str]:
    """Write a pod's group into `ours`; yield what has no effect. Raises RequestError."""
    if not all(there.text(name) for name in (_GROUP, _HEADCOUNT, _THRESHOLD)):
        return  # as in KubeShare, where such a pod has no group
    headcount, threshold = there.number(_HEADCOUNT), there.number(_THRESHOLD)
    if headcount.denominator != 1:
        raise there.wrong(_HEADCOUNT, "is not a number of pods: write a whole number")
    if threshold > 1:
        raise there.wrong(_THRESHOLD, "is more than all pods of the group: write 1 or less")
    least = (2 * headcount * threshold + 1) // 2
    if least < headcount and least <= 1:
        yield f"{there.key(_GROUP)} has no effect: its threshold lets each pod start alone"
        return
    size = str(headcount) if least == headcount else f"{least}-{headcount}"
    ours[contract.GROUP], ours[contract.GROUP_SIZE] = there.text(_GROUP), size
