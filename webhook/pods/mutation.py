"""Mutation: pod and placement → the rewritten pod, and the JSON Patch (RFC 6902) to it. Pure and idempotent.

The whole pod is rewritten, and `patch` compares, so the patch of a rewritten pod is empty. Only our own fields change.
A pod with results was reviewed again after another webhook, or was copied: `as_asked` removes them first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpushare import contract, errors, pod, quantity
from gpushare import request as requests
from gpushare.allocation import GivenShare, Isolation
from gpushare.nodefilters import share_resources
from gpushare.pod import PodJson
from gpushare.refusal import Refusal
from gpushare.request import Demand, Request
from webhook.pods.pod_manifest import PodSpecView

_Mutable = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Placed:
    """A pod's placement. `hostname` is the node's hostname label, which may differ from its name."""

    allocation_id: str
    node: str
    hostname: str
    shares: tuple[GivenShare, ...]
    isolation: Isolation = Isolation.ARBITER


def rewrite(manifest: PodJson, request: Request, outcome: Placed | Refusal) -> PodJson:
    """Return the pod to be created: pinned to node and GPUs, or gated with the reason."""
    after = _copy(manifest)
    view = PodSpecView.read(after)
    _remove_results(view, after, request)
    if isinstance(outcome, Placed):
        _pin(after, request, outcome)
    else:
        after["metadata"]["annotations"][contract.REASON] = outcome.reason
        gates = after["spec"]["schedulingGates"] = after["spec"].get("schedulingGates") or []  # may be null
        if all(gate.get("name") != contract.SCHEDULING_GATE for gate in gates):
            gates.append({"name": contract.SCHEDULING_GATE})
    if request.no_evict:
        after["metadata"]["annotations"] = {**contract.AUTOSCALERS_KEEP, **after["metadata"]["annotations"]}
    labels = after["metadata"].get("labels") or {}  # may be null
    after["metadata"]["labels"] = {**labels, contract.SHARE_LABEL: contract.SHARE_LABEL_VALUE}
    containers: dict[str, Any] = {str(container.get("name")): container for container in view.all_containers}
    for demand in request.demands:
        for name in demand.containers:
            resources = share_resources.resources(demand, name)
            if not has_resources(containers[name], resources):
                _declare(containers[name], resources)
            _set(containers[name], *_environment(request, demand, name, outcome))
    for container in without_devices(view, request):
        if not _visible(container) or asks_for_devices(container):
            # The container runtime hides all GPUs, even if the image requests them.
            _set(container, {"name": contract.ENV_VISIBLE_DEVICES, "value": contract.VISIBLE_NONE[0]})
    return after


def open_gate(manifest: PodJson, request: Request, placed: Placed) -> PodJson:
    """Return a gated pod that has been placed, with the changes that are still allowed: none of its containers."""
    after = _copy(manifest)
    _remove_results(PodSpecView.read(after), after, request)
    _pin(after, request, placed)
    return after


def as_asked(view: PodSpecView, request: Request, *, pinned_to: str = "") -> PodJson:
    """Return the pod without results of an earlier placement. pinned_to: where gpushare has pinned it, if known."""
    if not view.pinned_host and not stale_resources(view, request):
        return view.manifest
    after = _copy(view.manifest)
    _remove_results(PodSpecView.read(after), after, request, pinned_to=pinned_to)
    return after


def stale_resources(view: PodSpecView, request: Request) -> list[Any]:
    """Return the containers that gpushare has rewritten before, and whose resources do not match this request."""
    if view.labels.get(contract.SHARE_LABEL) != contract.SHARE_LABEL_VALUE:
        return []
    wanted = share_resources.by_container(request)
    return [
        container
        for container in view.all_containers
        if not has_resources(container, wanted.get(str(container.get("name")), {}))
    ]


def has_resources(container: PodJson, wanted: Mapping[str, str]) -> bool:
    """Whether the container's limits and requests have exactly these resources of gpushare."""
    declared = container.get("resources") or {}
    for side in ("limits", "requests"):
        texts = {key: str(each) for key, each in (declared.get(side) or {}).items() if key.startswith(contract.PREFIX)}
        ours = {key: text for key, text in texts.items() if pod.is_some(text)}
        try:
            if ours.keys() != wanted.keys() or any(
                quantity.parse(text) != quantity.parse(wanted[key]) for key, text in ours.items()
            ):
                return False
        except errors.QuantityError:
            return False
    return True


def visible_devices(container: PodJson) -> list[PodJson]:
    return [entry for entry in _visible(container) if contract.GPU_UUIDS not in _field_path(entry)]


def without_devices(view: PodSpecView, request: Request) -> list[Any]:
    """Return the containers that must see no GPU: they have no share, and no device or claim of another plugin."""
    sharers = {name for demand in request.demands for name in demand.containers}
    return [
        container
        for container in view.all_containers
        if container.get("name") not in sharers
        and not (container.get("resources") or {}).get("claims")
        and not any("/" in name for name in pod.resources(container))
    ]


def asks_for_devices(container: PodJson) -> bool:
    """Whether the container selects visible GPUs by itself, other than none."""
    return any(
        entry.get("valueFrom") or entry.get("value", "") not in contract.VISIBLE_NONE for entry in _visible(container)
    )


def uuids_annotation(request: Request, container: str) -> str:
    """Return the annotation key for this container's UUIDs, which is its own if containers differ."""
    return contract.GPU_UUIDS if len(request.demands) == 1 else f"{contract.GPU_UUIDS}.{container}"


def _copy(manifest: PodJson) -> _Mutable:
    """Copy the parts that are changed here; the rest, which may be large, is shared."""
    after: _Mutable = {**manifest}
    metadata = after["metadata"] = {**(after.get("metadata") or {})}  # may be null
    metadata["annotations"] = {**(metadata.get("annotations") or {})}
    spec = after["spec"] = {**(after.get("spec") or {})}
    for listed in ("containers", "initContainers", "schedulingGates"):
        if spec.get(listed):
            spec[listed] = [{**container} for container in spec[listed]]
    return after


def _remove_results(view: PodSpecView, after: _Mutable, request: Request, *, pinned_to: str = "") -> None:
    """Remove results of an earlier placement from `after`; `view` is a view of it."""
    host, own = view.pinned_host, view.annotations.get(contract.OWN_HOSTNAME)
    if host and host == (pinned_to or host):
        selector = {k: v for k, v in after["spec"]["nodeSelector"].items() if k != contract.HOSTNAME_LABEL}
        if own is not None:
            selector[contract.HOSTNAME_LABEL] = own
        after["spec"]["nodeSelector"] = selector
    wanted = share_resources.by_container(request)
    stale: list[Any] = stale_resources(view, request)
    for container in stale:
        _declare(container, wanted.get(container["name"], {}))
    annotations = after["metadata"]["annotations"]
    after["metadata"]["annotations"] = {k: v for k, v in annotations.items() if not requests.is_result_key(k)}


def _pin(after: _Mutable, request: Request, placed: Placed) -> None:
    annotations = after["metadata"]["annotations"]
    annotations[contract.ALLOCATION] = placed.allocation_id
    annotations[contract.NODE] = placed.node
    annotations[contract.GPU_UUIDS] = _list(uuid for share in placed.shares for uuid in share.gpu_uuids)
    if placed.isolation is not Isolation.ARBITER:
        annotations[contract.ISOLATION_GIVEN] = placed.isolation.value
    for share in placed.shares:
        if share.mig is not None:
            annotations[contract.MIG_DEVICE] = str(share.mig)
    for demand in request.demands:
        for name in demand.containers:
            annotations[uuids_annotation(request, name)] = _list(_share_for(placed, demand).gpu_uuids)
    spec = after["spec"]
    selector = spec.get("nodeSelector") or {}
    if contract.HOSTNAME_LABEL in selector:
        annotations[contract.OWN_HOSTNAME] = selector[contract.HOSTNAME_LABEL]
    spec["nodeSelector"] = {**selector, contract.HOSTNAME_LABEL: placed.hostname}
    gates = [gate for gate in spec.get("schedulingGates") or [] if gate.get("name") != contract.SCHEDULING_GATE]
    if gates:
        spec["schedulingGates"] = gates
    else:
        spec.pop("schedulingGates", None)


def _declare(container: _Mutable, wanted: Mapping[str, str]) -> None:
    declared = container["resources"] = {**(container.get("resources") or {})}
    for side in ("limits", "requests"):
        foreign = {k: v for k, v in (declared.get(side) or {}).items() if not k.startswith(contract.PREFIX)}
        declared[side] = {**foreign, **wanted}


def _environment(
    request: Request, demand: Demand, container: str, outcome: Placed | Refusal
) -> Iterator[dict[str, Any]]:
    share = demand.share
    memory_bytes = share.memory.bytes
    limit_bytes = share.memory_limit.bytes if share.memory_limit is not None else None
    if isinstance(outcome, Placed):
        yield {"name": contract.ENV_VISIBLE_DEVICES, "value": _list(_share_for(outcome, demand).gpu_uuids)}
        given = _share_for(outcome, demand)
        memory_bytes, limit_bytes = given.memory_bytes, given.memory_limit_bytes
    else:
        # The environment of a stored pod is immutable, but the annotation that it refers to is not.
        path = f"metadata.annotations['{uuids_annotation(request, container)}']"
        yield {"name": contract.ENV_VISIBLE_DEVICES, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    yield {"name": contract.ENV_REQUEST, "value": str(share.request_percent)}
    yield {"name": contract.ENV_LIMIT, "value": str(share.limit_percent)}
    if memory_bytes is not None:
        yield {"name": contract.ENV_MEMORY, "value": str(memory_bytes)}
    if limit_bytes is not None:
        yield {"name": contract.ENV_MEMORY_LIMIT, "value": str(limit_bytes)}


def _set(container: _Mutable, *wanted: dict[str, Any]) -> None:
    """Set these variables, in place or first: the last entry wins, and `$(NAME)` is expanded only after NAME."""
    by_name = {variable["name"]: variable for variable in wanted}
    environment = [
        by_name[entry["name"]]
        if entry.get("name") in by_name and not _is_same(entry, by_name[entry["name"]])
        else entry
        for entry in container.get("env") or []
    ]
    there = {entry.get("name") for entry in environment}
    container["env"] = [*(variable for variable in wanted if variable["name"] not in there), *environment]


def _is_same(entry: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    if "value" in wanted:
        return dict(entry) == wanted
    # The API server adds the default apiVersion to a reference.
    return "value" not in entry and _field_path(entry) == _field_path(wanted)


def _visible(container: PodJson) -> list[PodJson]:
    return [entry for entry in container.get("env") or [] if entry.get("name") == contract.ENV_VISIBLE_DEVICES]


def _field_path(entry: Mapping[str, Any]) -> str:
    return str(((entry.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath", ""))


def _share_for(placed: Placed, demand: Demand) -> GivenShare:
    share = next((share for share in placed.shares if share.containers == demand.containers), None)
    if share is None:
        raise errors.LedgerError(f"allocation {placed.allocation_id} has no share for {', '.join(demand.containers)}")
    return share


def _list(uuids: Iterable[str]) -> str:
    return ",".join(dict.fromkeys(uuids))


Operation = dict[str, Any]


def patch(before: Any, after: Any) -> list[Operation]:
    """Return the operations in order; none if both are equal as JSON. An object that is in both is not compared.

    Lists are compared by index, and extra items are added at the end, or in front if the rest is unchanged. Each
    admission pays for it, and a search for the shortest patch takes ten times as long.
    """
    return list(_compare(before, after, ""))


def _compare(before: Any, after: Any, path: str) -> Iterator[Operation]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key not in after:
                yield {"op": "remove", "path": f"{path}/{escaped(key)}"}
            elif value is not after[key]:
                yield from _compare(value, after[key], f"{path}/{escaped(key)}")
        for key, value in after.items():
            if key not in before:
                yield {"op": "add", "path": f"{path}/{escaped(key)}", "value": value}
    elif isinstance(before, list) and isinstance(after, list):
        yield from _compare_lists(before, after, path)
    elif before != after or isinstance(before, bool) is not isinstance(after, bool):
        yield {"op": "replace", "path": path, "value": after}


def _compare_lists(before: list[Any], after: list[Any], path: str) -> Iterator[Operation]:
    more = len(after) - len(before)
    if more > 0 and after[more:] == before:
        for place in range(more):
            yield {"op": "add", "path": f"{path}/{place}", "value": after[place]}
        return
    common = min(len(before), len(after))
    for place in range(len(before) - 1, common - 1, -1):  # from the end, so that indexes stay valid
        yield {"op": "remove", "path": f"{path}/{place}"}
    for place in range(common):
        if before[place] is not after[place]:
            yield from _compare(before[place], after[place], f"{path}/{place}")
    for value in after[common:]:
        yield {"op": "add", "path": f"{path}/-", "value": value}


def escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
