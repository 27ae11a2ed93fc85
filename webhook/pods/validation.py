"""Validation: pod → why it is denied, as a sentence with a remedy; and what it is told otherwise. Pure.

Denied is only what could never be honoured. What merely does not fit now is gated instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from gpushare import contract, errors, pod
from gpushare import request as requests
from gpushare.nodefilters import share_resources
from gpushare.pod import PodJson
from gpushare.request import Request
from webhook.pods import covered_mounts, mutation

_NVIDIA_PREFIX: Final = "nvidia.com/"
_MAX_KEY_NAME: Final = 63  # of an annotation key, after the slash
_MAX_BYTES: Final = 2**63 - 1  # what a quantity of an extended resource can say
_SMALLEST_CONTEXT_BYTES: Final = 100 << 20  # of the driver, on a small GPU


@dataclasses.dataclass(frozen=True, slots=True)
class Denial:
    """Why not; `code` is the HTTP status that the client sees."""

    sentence: str
    code: int = 422


def read(manifest: PodJson) -> Request | Denial:
    """The pod's request, or why it cannot be honoured."""
    names = [container.get("name") for container in _all_containers(manifest)]
    if not all(names) or len(set(names)) != len(names):
        return Denial("spec.containers and spec.initContainers do not each have a name of their own", 400)
    try:
        request = requests.parse(manifest)
    except errors.RequestError as error:
        return Denial(str(error))
    for judge in _JUDGES:
        denial = judge(manifest, request)
        if denial is not None:
            return denial
    return request


def warnings(manifest: PodJson, request: Request) -> tuple[str, ...]:
    """Sentences about what will be changed against the pod's wording."""
    return (
        *_first_of_several(manifest, request),
        *_less_than_a_context(manifest, request),
        *_forged(manifest),
        *_stale(manifest, request),
        *_replaced_devices(manifest, request),
    )


def _isolation(_manifest: PodJson, request: Request) -> Denial | None:
    if request.isolation in {"", "arbiter"}:
        return None
    value = errors.quoted(request.isolation)
    return Denial(
        f'{contract.ISOLATION} {value} is not built yet in this version: write "arbiter", or leave it out for the same'
    )


def _node_name(manifest: PodJson, _request: Request) -> Denial | None:
    name = _spec(manifest).get("nodeName")
    if not name:
        return None
    return Denial(
        f"spec.nodeName {errors.quoted(str(name))} goes around scheduling, and so around the count of what is free: "
        f"remove it, and to choose the node write spec.nodeSelector {contract.HOSTNAME_LABEL}"
    )


def _host_pid(manifest: PodJson, _request: Request) -> Denial | None:
    if not _spec(manifest).get("hostPID"):
        return None
    return Denial(
        "spec.hostPID true lets the pod's processes pass for others, so that no limit could be held: remove it, "
        "or use a whole GPU without gpushare.io annotations",
        403,
    )


def _privileged(manifest: PodJson, _request: Request) -> Denial | None:
    for container in _all_containers(manifest):
        if (container.get("securityContext") or {}).get("privileged"):
            return Denial(
                f"container {errors.quoted(str(container.get('name')))} is privileged and sees every GPU of its node, "
                "so that no limit could be held: remove securityContext.privileged, or use a whole GPU without "
                "gpushare.io annotations",
                403,
            )
    return None


def _windows(manifest: PodJson, _request: Request) -> Denial | None:
    if (_spec(manifest).get("os") or {}).get("name") != "windows":
        return None
    return Denial(
        'spec.os.name "windows" has no shares: gpushare shares the GPUs of Linux nodes, remove its annotations'
    )


def _mounts(manifest: PodJson, _request: Request) -> Denial | None:
    covered = covered_mounts.over_ours(manifest)
    if covered is None:
        return None
    name, path, ours = covered
    return Denial(
        f"container {errors.quoted(name)} mounts a volume on {errors.quoted(path)}, over {ours}, by which it is held "
        "to its share: mount it elsewhere, or further down",
        403,
    )


def _own_resources(manifest: PodJson, request: Request) -> Denial | None:
    wanted = share_resources.by_container(request)
    # Those of a pod that gpushare has rewritten before are replaced, with a warning.
    recognised = [container.get("name") for container in mutation.stale_resources(manifest, request)]
    for container in _all_containers(manifest):
        name, asked = str(container.get("name")), {*pod.resources(container)}
        for key, value in _declared(container):
            if key not in asked:
                continue
            if name in wanted and key.startswith(_NVIDIA_PREFIX):
                return Denial(
                    f"container {errors.quoted(name)} asks for {key} {errors.quoted(str(value))} and for a share as "
                    f"well: remove {key}, or the gpushare.io annotations"
                )
            is_right = name in recognised or mutation.has_resources(container, wanted.get(name, {}))
            if key.startswith(contract.PREFIX) and not is_right:
                return Denial(
                    f"container {errors.quoted(name)} asks for {key} {errors.quoted(str(value))}, which gpushare works "
                    "out from the annotations: remove it, where nobody wrote it from the LimitRange or the copied pod "
                    f"that it comes with, and write {contract.REQUEST} or {contract.MEMORY}"
                )
    return None


def _long_names(_manifest: PodJson, request: Request) -> Denial | None:
    for demand in request.demands:
        for name in demand.containers:
            _, _, key_name = mutation.uuids_annotation(request, name).partition("/")
            if len(key_name) > _MAX_KEY_NAME:
                longest = len(name) - (len(key_name) - _MAX_KEY_NAME)
                return Denial(
                    f"container {errors.quoted(name)} has too long a name to have a share apart from others: "
                    f"at most {longest} characters fit into {contract.GPU_UUIDS}.NAME"
                )
    return None


def _too_many_bytes(_manifest: PodJson, request: Request) -> Denial | None:
    for demand in request.demands:
        if (demand.share.memory.bytes or 0) * demand.gpus > _MAX_BYTES:
            value = errors.quoted(str(demand.share.memory.bytes))
            return Denial(
                f"{contract.MEMORY} {value} on {demand.gpus} GPUs is more bytes than there can be: write less"
            )
    return None


_JUDGES: tuple[Callable[[PodJson, Request], Denial | None], ...] = (
    _isolation,
    _node_name,
    _windows,
    _host_pid,
    _privileged,
    _mounts,
    _long_names,
    _too_many_bytes,
    _own_resources,
)


def _first_of_several(manifest: PodJson, request: Request) -> Iterator[str]:
    """A webhook before ours may have put a sidecar in front, which then has the share without its user's knowledge."""
    ordinary, annotations = pod.containers(manifest), pod.annotations_of(manifest)
    name = pod.default_container(manifest)
    is_chosen = contract.CONTAINER in annotations or annotations.get(pod.DEFAULT_CONTAINER) == name
    is_known = pod.has_share_resources(manifest)
    has_share = any(name in demand.containers for demand in request.demands)
    has_own_keys = any(key.endswith(f".{name}") for key in pod.share_keys(annotations))
    if len(ordinary) > 1 and has_share and not (is_chosen or is_known or has_own_keys):
        yield (
            f"the share is for container {errors.quoted(name, longest=40)}, the first of {len(ordinary)}: to give it "
            f"to another, write {contract.CONTAINER}"
        )


def _less_than_a_context(manifest: PodJson, request: Request) -> Iterator[str]:
    annotations = pod.annotations_of(manifest)
    for demand in request.demands:
        own = f"{contract.MEMORY}.{demand.containers[0]}"
        key = own if own in annotations else contract.MEMORY
        if 0 < (demand.share.memory.bytes or 0) < _SMALLEST_CONTEXT_BYTES:
            yield (
                f"{key} {errors.quoted(annotations[key], longest=40)} is less than a CUDA context takes, 100 to 600 "
                "MiB for each process: CUDA programs will be out of memory at once"
            )


def _stale(manifest: PodJson, request: Request) -> Iterator[str]:
    host, own = mutation.pinned_host(manifest), pod.annotations_of(manifest).get(contract.OWN_HOSTNAME)
    if host and host != own:
        instead = "removed" if own is None else f"replaced by its user's own {errors.quoted(own, longest=40)}"
        yield (
            f"spec.nodeSelector {contract.HOSTNAME_LABEL} {errors.quoted(host, longest=40)} is gpushare's choice for "
            f"the pod that this is a copy of: it was {instead}"
        )
    for container in mutation.stale_resources(manifest, request):
        name = errors.quoted(str(container.get("name")), longest=40)
        yield f"resources of gpushare.io of container {name} do not agree with the annotations: they were replaced"


def _forged(manifest: PodJson) -> Iterator[str]:
    waits = contract.SCHEDULING_GATE in pod.gates(manifest)
    for key in pod.annotations_of(manifest):
        # A pod that we have gated comes again with its reason when another webhook has changed it after us.
        if requests.is_result_key(key) and not (key == contract.REASON and waits):
            yield f"{key} is written by gpushare alone: yours was removed"


def _replaced_devices(manifest: PodJson, request: Request) -> Iterator[str]:
    sharers = {name for demand in request.demands for name in demand.containers}
    for container in _all_containers(manifest):
        if container.get("name") in sharers and mutation.visible_devices(container):
            name = errors.quoted(str(container["name"]), longest=40)
            yield f"{contract.ENV_VISIBLE_DEVICES} of container {name} was replaced by the GPUs of its share"
    for container in mutation.without_devices(manifest, request):
        if mutation.asks_for_devices(container):
            name = errors.quoted(str(container["name"]), longest=40)
            yield f"{contract.ENV_VISIBLE_DEVICES} of container {name} was replaced by void: it has no share"


def _spec(manifest: PodJson) -> Mapping[str, Any]:
    return manifest.get("spec") or {}


def _all_containers(manifest: PodJson) -> list[Mapping[str, Any]]:
    return [*pod.containers(manifest), *pod.init_containers(manifest)]


def _declared(container: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    declared = container.get("resources") or {}
    for side in ("limits", "requests"):
        yield from (declared.get(side) or {}).items()
