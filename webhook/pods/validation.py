"""Validation: pod → its request, or why it is denied, as a sentence with a remedy; and warnings. Pure.

A pod is denied only if its request can never be met. A volume must not cover the files that the agent mounts, because
of two mounts on one path the later wins, nor be above them: a user who can write into it can replace the mount point
with a symbolic link. Only above the arbiter's directory are volumes allowed, because many pods have an emptyDir on
/run; a program that abuses that is found by the audit.
"""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Iterator
from typing import Final

from gpushare import contract, errors, pod
from gpushare import request as requests
from gpushare.nodefilters import share_resources
from gpushare.request import Request
from webhook.pods import mutation
from webhook.pods.pod_manifest import PodSpecView

_MAX_KEY_NAME: Final = 63  # of an annotation key, after the slash
_MAX_BYTES: Final = 2**63 - 1  # the largest quantity of an extended resource
_SMALLEST_CONTEXT_BYTES: Final = 100 << 20  # a CUDA context on a small GPU

# Symbolic links in most images: a mount on the first path is a mount on the second.
_LINKS: Final = (("/var/run", "/run"), ("/lib", "/usr/lib"))
_OUR_DIRECTORIES: Final = (contract.CONTAINER_ARBITER_DIRECTORY, posixpath.dirname(contract.CONTAINER_LIBRARY))
_OUR_PATHS: Final = (*_OUR_DIRECTORIES, contract.CONTAINER_PRELOAD_FILE, contract.CONTAINER_PRELOAD_FILE_OF_NIX)
_ALLOWED_ABOVE: Final = frozenset({posixpath.dirname(contract.CONTAINER_ARBITER_DIRECTORY)})


@dataclasses.dataclass(frozen=True, slots=True)
class Denial:
    """The reason for a denial; `code` is the HTTP status that the client sees."""

    sentence: str
    code: int = 422


def read(view: PodSpecView) -> Request | Denial:
    names = [container.get("name") for container in view.all_containers]
    if not all(names) or len(set(names)) != len(names):
        return Denial("spec.containers and spec.initContainers need unique names", 400)
    try:
        request = view.request()
    except errors.RequestError as error:
        return Denial(str(error))
    return next(_denials(view, request), request)


def warnings(view: PodSpecView, request: Request) -> tuple[str, ...]:
    return (
        *_first_of_several(view, request),
        *_less_than_a_context(view, request),
        *_forged(view),
        *_stale(view, request),
        *_replaced_devices(view, request),
    )


def _denials(view: PodSpecView, request: Request) -> Iterator[Denial]:
    if name := view.spec.get("nodeName"):
        yield Denial(
            f"spec.nodeName {errors.quoted(str(name))} bypasses scheduling, and with it the ledger of free GPUs: "
            f"remove it; to choose the node, write spec.nodeSelector {contract.HOSTNAME_LABEL}"
        )
    if (view.spec.get("os") or {}).get("name") == "windows":
        yield Denial(
            'spec.os.name "windows" is not supported: gpushare shares GPUs of Linux nodes only; remove its annotations'
        )
    if view.spec.get("hostPID"):
        yield Denial(
            "spec.hostPID true lets the pod's processes impersonate others, so no limit could be enforced: remove it, "
            "or use a whole GPU without gpushare.io annotations",
            403,
        )
    for container in view.all_containers:
        if (container.get("securityContext") or {}).get("privileged"):
            yield Denial(
                f"container {errors.quoted(str(container.get('name')))} is privileged and sees every GPU of its node, "
                "so no limit could be enforced: remove securityContext.privileged, or use a whole GPU without "
                "gpushare.io annotations",
                403,
            )
    for container in (*view.all_containers, *(view.spec.get("ephemeralContainers") or [])):
        paths = [str(mount.get("mountPath") or "/") for mount in container.get("volumeMounts") or []]
        paths += [str(device.get("devicePath") or "/") for device in container.get("volumeDevices") or []]
        for path in paths:
            ours = covered_path(path)
            if ours is not None:
                yield Denial(
                    f"container {errors.quoted(str(container.get('name')))} mounts a volume on {errors.quoted(path)}, "
                    f"over {ours}, which enforces its share: mount it elsewhere, or deeper",
                    403,
                )
    yield from _too_large(request)
    yield from _own_resources(view, request)


def _too_large(request: Request) -> Iterator[Denial]:
    for demand in request.demands:
        for name in demand.containers:
            _, _, key_name = mutation.uuids_annotation(request, name).partition("/")
            if len(key_name) > _MAX_KEY_NAME:
                longest = len(name) - (len(key_name) - _MAX_KEY_NAME)
                yield Denial(
                    f"container {errors.quoted(name)} has a name that is too long for a separate share: "
                    f"at most {longest} characters fit into {contract.GPU_UUIDS}.NAME"
                )
    for demand in request.demands:
        if (demand.share.memory.bytes or 0) * demand.gpus > _MAX_BYTES:
            value = errors.quoted(str(demand.share.memory.bytes))
            yield Denial(f"{contract.MEMORY} {value} on {demand.gpus} GPUs exceeds 2^63-1 bytes: write less")


def _own_resources(view: PodSpecView, request: Request) -> Iterator[Denial]:
    wanted = share_resources.by_container(request)
    # Resources that gpushare has written before are replaced, with a warning.
    recognised = [container.get("name") for container in mutation.stale_resources(view, request)]
    for container in view.all_containers:
        name, asked = str(container.get("name")), {*pod.resources(container)}
        declared = container.get("resources") or {}
        for key, value in (*(declared.get("limits") or {}).items(), *(declared.get("requests") or {}).items()):
            if key not in asked:
                continue
            if name in wanted and key.startswith("nvidia.com/"):
                yield Denial(
                    f"container {errors.quoted(name)} requests both {key} {errors.quoted(str(value))} and a share: "
                    f"remove {key}, or the gpushare.io annotations"
                )
            is_right = name in recognised or mutation.has_resources(container, wanted.get(name, {}))
            if key.startswith(contract.PREFIX) and not is_right:
                yield Denial(
                    f"container {errors.quoted(name)} requests {key} {errors.quoted(str(value))}, which gpushare "
                    "computes from the annotations: remove it (it may come from a LimitRange or a copied pod), "
                    f"and write {contract.REQUEST} or {contract.MEMORY}"
                )


def _first_of_several(view: PodSpecView, request: Request) -> Iterator[str]:
    """Warn if the first of several containers gets the share: another webhook may have inserted a sidecar there."""
    ordinary, annotations = view.containers, view.annotations
    name = view.default_container
    is_chosen = contract.CONTAINER in annotations or annotations.get(pod.DEFAULT_CONTAINER) == name
    is_known = pod.has_share_resources(view.manifest)
    has_share = any(name in demand.containers for demand in request.demands)
    has_own_keys = any(key.endswith(f".{name}") for key in pod.share_keys(annotations))
    if len(ordinary) > 1 and has_share and not (is_chosen or is_known or has_own_keys):
        yield (
            f"the share is for container {errors.quoted(name, longest=40)}, the first of {len(ordinary)}: to give it "
            f"to another, write {contract.CONTAINER}"
        )


def _less_than_a_context(view: PodSpecView, request: Request) -> Iterator[str]:
    annotations = view.annotations
    for demand in request.demands:
        own = f"{contract.MEMORY}.{demand.containers[0]}"
        key = own if own in annotations else contract.MEMORY
        if 0 < (demand.share.memory.bytes or 0) < _SMALLEST_CONTEXT_BYTES:
            yield (
                f"{key} {errors.quoted(annotations[key], longest=40)} is less than a CUDA context needs, 100 to 600 "
                "MiB per process: CUDA programs will run out of memory at once"
            )


def _stale(view: PodSpecView, request: Request) -> Iterator[str]:
    host, own = view.pinned_host, view.annotations.get(contract.OWN_HOSTNAME)
    if host and host != own:
        instead = "removed" if own is None else f"replaced by the user's own {errors.quoted(own, longest=40)}"
        yield (
            f"spec.nodeSelector {contract.HOSTNAME_LABEL} {errors.quoted(host, longest=40)} was set by gpushare in "
            f"the pod that this is a copy of: it was {instead}"
        )
    for container in mutation.stale_resources(view, request):
        name = errors.quoted(str(container.get("name")), longest=40)
        yield f"the gpushare.io resources of container {name} do not match the annotations: they were replaced"


def _forged(view: PodSpecView) -> Iterator[str]:
    waits = contract.SCHEDULING_GATE in pod.gates(view.manifest)
    for key in view.annotations:
        # A pod that we have gated has its reason when it is reinvoked after another webhook.
        if requests.is_result_key(key) and not (key == contract.REASON and waits):
            yield f"only gpushare writes {key}: yours was removed"


def _replaced_devices(view: PodSpecView, request: Request) -> Iterator[str]:
    sharers = {name for demand in request.demands for name in demand.containers}
    for container in view.all_containers:
        if container.get("name") in sharers and mutation.visible_devices(container):
            name = errors.quoted(str(container["name"]), longest=40)
            yield f"{contract.ENV_VISIBLE_DEVICES} of container {name} was replaced by the GPUs of its share"
    for container in mutation.without_devices(view, request):
        if mutation.asks_for_devices(container):
            name = errors.quoted(str(container["name"]), longest=40)
            yield f"{contract.ENV_VISIBLE_DEVICES} of container {name} was replaced by void: it has no share"


def covered_path(path: str) -> str | None:
    """Return gpushare's path that a mount on this path would hide or change, or None."""
    clean = posixpath.normpath("/" + path.lstrip("/"))
    for link, target in _LINKS:
        if _is_in(clean, link):
            clean = target + clean.removeprefix(link)
    return next(
        (path for path in _OUR_PATHS if _is_in(clean, path) or (clean not in _ALLOWED_ABOVE and _is_in(path, clean))),
        None,
    )


def _is_in(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
