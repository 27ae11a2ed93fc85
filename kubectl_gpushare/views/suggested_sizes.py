"""Suggested sizes: suggestions of `rightsize` as annotations, and as the commands that would ask for them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping

from gpushare import contract, pod, quantity
from kubectl_gpushare.planning.rightsizing import Size, Suggestion

_FLAGS = {contract.REQUEST: "--request", contract.MEMORY: "--memory"}


def commands(suggestions: Iterable[Suggestion], manifests: Mapping[tuple[str, str], pod.PodJson]) -> Iterator[str]:
    """A command line for each suggestion."""
    for suggestion in suggestions:
        if suggestion.wanted is None:
            continue
        words = ["kubectl", "gpushare", "resize", suggestion.pod, "-n", suggestion.namespace]
        container = own(suggestion, manifests)
        words += ["-c", container] if container else []
        for key, value in asked(suggestion.wanted).items():
            words += [_FLAGS[key], value]
        yield shlex.join(words)


def asked(wanted: Size) -> dict[str, str]:
    """The size as annotations. Always both: memory without an annotation follows the request."""
    return {
        contract.REQUEST: quantity.format_compute(wanted.request_percent),
        contract.MEMORY: quantity.format_exactly(wanted.memory_bytes),
    }


def own(suggestion: Suggestion, manifests: Mapping[tuple[str, str], pod.PodJson]) -> str:
    """The container whose own annotations ask for the share; empty if the pod's annotations do."""
    if len(suggestion.containers) != 1:
        return ""
    name = suggestion.containers[0]
    manifest = manifests.get((suggestion.namespace, suggestion.pod))
    if manifest is None:
        return name if suggestion.several else ""
    annotations = pod.annotations_of(manifest)
    return name if any(f"{key}.{name}" in annotations for key in contract.PER_CONTAINER_KEYS) else ""
