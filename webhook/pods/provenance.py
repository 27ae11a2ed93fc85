"""Provenance: whether what is written on a stored pod can have been written by us. Pure.

The API server holds users to that (config/base/policy); this is for the pods that came by while it did not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpushare import contract, pod

PodJson = Mapping[str, Any]

_STATUSES: Final = ("containerStatuses", "initContainerStatuses")


def is_exempt(one: PodJson) -> bool:
    """Whether the webhook is never asked about such a pod."""
    namespace, _ = pod.namespaced_name(one)
    return namespace in contract.EXEMPT_NAMESPACES or contract.MIRROR_ANNOTATION in pod.annotations_of(one)


def has_share(one: PodJson) -> bool:
    """Whether it bears the label that the webhook puts on every pod of ours."""
    labels = (one.get("metadata") or {}).get("labels") or {}
    return bool(labels.get(contract.SHARE_LABEL) == contract.SHARE_LABEL_VALUE)


def is_ours(one: PodJson) -> bool:
    """Whether it can have been given a share: with one come resources, which cannot change and which quotas count."""
    return not is_exempt(one) and any(_our_resources(one))


def never_started(one: PodJson) -> bool:
    """Whether it leaves, and no kubelet has ever said anything of its containers: a finalizer may keep it for ever."""
    leaves = (one.get("metadata") or {}).get("deletionTimestamp")
    status = one.get("status") or {}
    return bool(leaves) and not any(status.get(key) for key in _STATUSES)


def may_hold(one: PodJson) -> bool:
    """Whether a share is kept for it. One that leaves and is on no node will never be on one."""
    is_bound = bool((one.get("spec") or {}).get("nodeName"))
    return is_ours(one) and (is_bound or not never_started(one))


def _our_resources(one: PodJson) -> Iterator[bool]:
    for container in (*pod.containers(one), *pod.init_containers(one)):
        for side in ("limits", "requests"):
            declared = (container.get("resources") or {}).get(side) or {}
            yield any(name.startswith(contract.PREFIX) for name in declared)
