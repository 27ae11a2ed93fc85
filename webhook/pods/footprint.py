"""Footprint: what a pod will ask of its node once it is rewritten: the scheduler counts our resources, too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpushare import contract, errors, pod
from gpushare import request as requests
from gpushare.fitness import Relations, Shape
from gpushare.placement import NodeView
from gpushare.request import Request
from webhook.pods import mutation

PodJson = Mapping[str, Any]


def of(manifest: PodJson, request: Request | None = None) -> tuple[Shape, Relations]:
    """Shape and relations of a pod that is to be placed; `request`: what it asks for, where that has been read."""
    return Shape.of(equipped(manifest, request)), Relations.of(manifest)


def equipped(manifest: PodJson, request: Request | None = None) -> PodJson:
    """The pod with our resources in its containers; as it is if it asks for no share, or for nonsense."""
    if request is None:
        if not pod.asks_for_share(manifest):
            return manifest
        try:
            request = requests.parse(manifest)
        except errors.RequestError:
            return manifest
    wanted = {name: mutation.resources(demand, name) for demand in request.demands for name in demand.containers}
    spec = {**(manifest.get("spec") or {})}
    for listed in ("containers", "initContainers"):
        if spec.get(listed):
            spec[listed] = [_with(container, wanted.get(str(container.get("name")), {})) for container in spec[listed]]
    return {**manifest, "spec": spec}


def is_full(view: NodeView, amounts: Iterable[tuple[str, int]]) -> bool:
    """Whether the GPUs of a node have less left, all together, than one of these amounts of our resources."""
    for name, amount in amounts:
        if name == contract.RESOURCE_PERCENT and amount > view.free_percent:
            return True
        if name == contract.RESOURCE_MEMORY and amount > view.free_bytes:
            return True
    return False


def _with(container: PodJson, wanted: Mapping[str, str]) -> PodJson:
    declared = container.get("resources") or {}
    sides = {
        side: {key: value for key, value in (declared.get(side) or {}).items() if not key.startswith(contract.PREFIX)}
        for side in ("limits", "requests")
    }
    return {**container, "resources": {side: {**foreign, **wanted} for side, foreign in sides.items()}}
