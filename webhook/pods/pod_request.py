"""What a stored pod asks for, if that can still be said, and how much it is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpushare import errors, pod
from gpushare import request as requests
from gpushare.nodefilters import share_resources
from gpushare.request import Request
from webhook.pods import mutation

PodJson = Mapping[str, Any]

_CHANGED: Final = (
    "its gpushare.io annotations no longer agree with the resources it was admitted with: "
    "delete the pod and create it anew"
)


def read(one: PodJson) -> Request | str:
    """Its request; or why it cannot be placed, as a sentence."""
    try:
        request = requests.parse(one)
    except errors.RequestError as error:
        return str(error)
    return request if _agrees(one, request) else _CHANGED


def size(request: Request) -> tuple[int, int]:
    """To order requests by: compute and memory of all its GPUs; a part of the memory is not counted, only bytes are."""
    compute = sum(demand.share.request_percent * demand.gpus for demand in request.demands)
    memory_bytes = sum((demand.share.memory.bytes or 0) * demand.gpus for demand in request.demands)
    return compute, memory_bytes


def _agrees(one: PodJson, request: Request) -> bool:
    """Whether the resources, which cannot change, are still those of the annotations, which can."""
    expected = {
        name: share_resources.resources(demand, name) for demand in request.demands for name in demand.containers
    }
    everyone = {
        str(container.get("name")): container for container in (*pod.containers(one), *pod.init_containers(one))
    }
    return all(mutation.has_resources(everyone[name], expected.get(name, {})) for name in everyone)
