"""Translation: a pod in another sharer's syntax → the same pod with gpushare's annotations. Pure.

The result has nothing of the other syntax left but labels, which do not ask any more. So it translates to itself, and
the rest of admission treats it like any other pod that asks for a share. A pod that uses two syntaxes, or one and
gpushare's own, is refused, because either could be the one that is meant.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from gpushare import caps, errors, pod
from gpushare.pod import PodJson
from gpushare.syntaxes import aliyun, gpustack, hami, kai, kubeshare, volcano
from gpushare.syntaxes.spelling import Marks, Spelling


@dataclasses.dataclass(frozen=True, slots=True)
class Syntax:
    """A syntax. name: the word in labels and paths; title: its usual name; read: parses a pod that has its marks."""

    name: str
    title: str
    marks: Marks
    read: Callable[[PodJson], Spelling]


SYNTAXES: Final[Mapping[str, Syntax]] = {
    module.NAME: Syntax(module.NAME, module.TITLE, module.MARKS, module.read)
    for module in (hami, kai, gpustack, aliyun, kubeshare, volcano)
}


@dataclasses.dataclass(frozen=True, slots=True)
class Translation:
    """A translated pod. spelled: gpushare's annotations for its request. replaced: resources that it had instead.

    notes: requests without effect.
    """

    syntax: Syntax
    manifest: PodJson
    spelled: Mapping[str, str]
    replaced: frozenset[str]
    notes: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        """The annotations as they are written in a manifest: `gpushare.io/request: "0.5"`."""
        return [f"{key}: {errors.quoted(value, longest=caps.VALUE)}" for key, value in self.spelled.items()]


def translate(manifest: PodJson, syntaxes: Iterable[Syntax] = SYNTAXES.values()) -> Translation | None:
    """Translate a pod that asks in one of these syntaxes; None if it asks in none. Raises RequestError."""
    if not any(syntax.marks.found(manifest) for syntax in syntaxes):
        return None
    manifest = _with_texts(manifest)
    asked = [(syntax, found) for syntax in SYNTAXES.values() if (found := syntax.marks.found(manifest))]
    syntax, found = asked[0]
    # LimitRanges set defaults for resources, not for annotations.
    amounts = _resources(manifest)
    remedy = "remove one (it may come from a LimitRange)" if found in amounts else "remove one"
    if len(asked) > 1:
        other, second = asked[1]
        raise errors.GpushareError(
            f"{found} is {syntax.title}'s syntax and {second} is {other.title}'s: a pod can use only one, so {remedy}"
        )
    if (own := next(pod.share_keys(pod.annotations_of(manifest)), None)) is not None:
        raise errors.GpushareError(f"{own} and {found}, {syntax.title}'s syntax, both ask for a share: {remedy}")
    spelling = syntax.read(manifest)
    if not spelling.shares:
        raise errors.GpushareError(f"{found} is {syntax.title}'s syntax, but no container asks for a GPU: remove it")
    spelled = spelling.spelled(manifest)
    own_annotations = pod.annotations_of(manifest)
    for key, value in spelled.items():
        if own_annotations.get(key, value) != value:
            raise errors.GpushareError(
                f"{key} {errors.quoted(own_annotations[key])} differs from {errors.quoted(value)}, which the pod "
                f"requests in {syntax.title}'s syntax: remove one"
            )
    after = syntax.marks.without(manifest)
    after["metadata"]["annotations"] = {**(after["metadata"].get("annotations") or {}), **spelled}
    return Translation(syntax, after, spelled, amounts - _resources(after), spelling.notes)


def _resources(manifest: PodJson) -> frozenset[str]:
    return frozenset(name for container in pod.all_containers(manifest) for name in pod.resources(container))


def _with_texts(manifest: PodJson) -> PodJson:
    """Return the pod with annotations and labels that are null as empty ones, as the API server stores them."""
    metadata = {**(manifest.get("metadata") or {})}
    for field in ("annotations", "labels"):
        if metadata.get(field):
            metadata[field] = {key: "" if text is None else text for key, text in metadata[field].items()}
    return {**manifest, "metadata": metadata}
