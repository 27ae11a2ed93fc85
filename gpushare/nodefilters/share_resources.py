"""Share resources: a pod with the extended resources that the webhook adds, which the scheduler counts, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpushare import contract, errors, pod
from gpushare import request as requests
from gpushare.nodefilters.pod_key import PodAffinity, PodKey
from gpushare.pod import PodJson
from gpushare.request import Demand, Request

_BINARY_UNITS: Final = tuple(
    (1024**power, suffix) for power, suffix in ((5, "Pi"), (4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki"))
)


def key_and_affinity(manifest: PodJson, request: Request | None = None) -> tuple[PodKey, PodAffinity]:
    """Return the filter keys of a pod that is to be placed; `request`: its request, if already parsed."""
    return PodKey.from_manifest(equipped(manifest, request)), PodAffinity.from_manifest(manifest)


def equipped(manifest: PodJson, request: Request | None = None) -> PodJson:
    """Return the pod with gpushare's resources in its containers; unchanged without a valid request."""
    if request is None:
        if not pod.asks_for_share(manifest):
            return manifest
        try:
            request = requests.parse(manifest)
        except errors.RequestError:
            return manifest
    wanted = by_container(request)
    spec = {**(manifest.get("spec") or {})}
    for listed in ("containers", "initContainers"):
        if spec.get(listed):
            spec[listed] = [_with(container, wanted.get(str(container.get("name")), {})) for container in spec[listed]]
    return {**manifest, "spec": spec}


def by_container(request: Request) -> dict[str, dict[str, str]]:
    """Return the extended resources of each container with a share."""
    return {name: resources(demand, name) for demand in request.demands for name in demand.containers}


def resources(demand: Demand, container: str) -> dict[str, str]:
    """Return the extended resources of one of a demand's containers.

    The first container carries the whole share. The others use it together with the first and must not be counted
    again, but the kubelet calls Allocate only for containers with a positive amount.
    """
    first = container == demand.containers[0]
    wanted = {}
    if first and demand.share.request_percent:
        wanted[contract.RESOURCE_PERCENT] = str(demand.share.request_percent * demand.gpus)
    else:
        wanted[contract.RESOURCE_IDLE] = str(demand.gpus)
    if first and demand.share.memory.bytes:
        wanted[contract.RESOURCE_MEMORY] = _exact_bytes(demand.share.memory.bytes * demand.gpus)
    return wanted


def _with(container: PodJson, wanted: Mapping[str, str]) -> PodJson:
    declared = container.get("resources") or {}
    sides = {
        side: {key: value for key, value in (declared.get(side) or {}).items() if not key.startswith(contract.PREFIX)}
        for side in ("limits", "requests")
    }
    return {**container, "resources": {side: {**foreign, **wanted} for side, foreign in sides.items()}}


def _exact_bytes(count: int) -> str:
    """Format bytes exactly as the API server would: an integer in the largest unit."""
    for unit, suffix in _BINARY_UNITS:
        if count and count % unit == 0:
            return f"{count // unit}{suffix}"
    return str(count)
