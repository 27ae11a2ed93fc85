"""An API server in memory: objects with resource versions, stale lists, a log to watch. Every call is atomic."""

from __future__ import annotations

import bisect
import copy
import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Final

import jsonpatch

from gpushare import contract
from gpushare.cluster import api_errors
from gpushare.nodefilters import volumes
from webhook.store import api_store, reservation_limits, shared_profile

GPUNODES: Final = contract.GPUNODE_PATH
NODES: Final = "/api/v1/nodes"
PODS: Final = "/api/v1/pods"
PROFILES: Final = shared_profile.COLLECTION
_KINDS: Final = {
    GPUNODES: (contract.API_VERSION, contract.GPUNODE_KIND),
    NODES: ("v1", "Node"),
    PODS: ("v1", "Pod"),
    PROFILES: ("v1", "ConfigMap"),
    reservation_limits.QUOTAS_PATH: ("v1", "ResourceQuota"),
    api_store.NAMESPACES_PATH: ("v1", "Namespace"),
    **{path: ("storage.k8s.io/v1" if "storage" in path else "v1", kind) for kind, path in volumes.PATHS.items()},
}

Object = dict[str, Any]
Key = tuple[str, str, str]  # collection, namespace, name


@dataclasses.dataclass(frozen=True, slots=True)
class Happened:
    """An entry of the log."""

    version: int
    collection: str
    type: str
    object: Object


class SimulatedApi:
    """The API server's state. It returns copies, and never changes stored objects in place."""

    def __init__(self) -> None:
        self.objects: dict[Key, Object] = {}
        self.log: list[Happened] = []
        self._version = 0
        self._uids = itertools.count(1)

    @property
    def version(self) -> int:
        return self._version

    def all(self, collection: str) -> list[Object]:
        return [item for key, item in self.objects.items() if key[0] == collection]

    def find(self, collection: str, namespace: str, name: str) -> Object | None:
        return self.objects.get((collection, namespace, name))

    # --- what clients do ---------------------------------------------------------------------------------------------

    def call(self, method: str, path: str, query: Mapping[str, Any], body: Any, content_type: str) -> Object:
        """Carry out a request. Raises the client's errors, as for an API server's answer."""
        collection, namespace, name, subresource = parse(path)
        if method == "GET" and not name:
            return self._list(collection, namespace, query)
        key = (collection, namespace, name)
        document = self.objects.get(key)
        if document is None:
            raise api_errors.NotFound(f"{path} not found", status=404)
        if method == "GET":
            return copy.deepcopy(document)
        if method == "PUT":
            return self._replace(key, document, body, subresource)
        if method == "PATCH":
            return self._patch(key, document, body, content_type)
        if method == "DELETE":
            self._check_uid(document, ((body or {}).get("preconditions") or {}).get("uid"))
            return self.delete(collection, namespace, name)
        raise AssertionError(f"the simulated API server does not know {method} {path}")

    def create(self, collection: str, item: Mapping[str, Any], **metadata: str) -> Object:
        made = copy.deepcopy(dict(item))
        api_version, kind = _KINDS[collection]
        made.update(apiVersion=api_version, kind=kind)
        made["metadata"].update(metadata)
        if not made["metadata"].get("name"):
            made["metadata"]["name"] = f"{made['metadata']['generateName']}{next(self._uids)}"
        key = (collection, made["metadata"].get("namespace", ""), made["metadata"]["name"])
        if key in self.objects:
            raise api_errors.AlreadyExists(f"{key} already exists", status=409, reason="AlreadyExists")
        made["metadata"]["uid"] = f"uid-{next(self._uids)}"
        return self._store(key, made, "ADDED")

    def update(self, collection: str, namespace: str, name: str, **fields: Any) -> Object:
        """Replace whole fields, as another client would."""
        key = (collection, namespace, name)
        return self._store(key, {**copy.deepcopy(self.objects[key]), **fields}, "MODIFIED")

    def delete(self, collection: str, namespace: str, name: str) -> Object:
        gone = self.objects.pop((collection, namespace, name))
        self._version += 1
        last = copy.deepcopy(gone)
        last["metadata"]["resourceVersion"] = str(self._version)
        self.log.append(Happened(self._version, collection, "DELETED", last))
        return last

    def snapshot(self, collection: str, version: int) -> list[Object]:
        """Return the collection as it was at that version."""
        items: dict[tuple[str, str], Object] = {}
        for entry in self.log:
            if entry.version > version:
                break
            if entry.collection == collection:
                key = entry.object["metadata"].get("namespace", ""), entry.object["metadata"]["name"]
                items.pop(key, None)
                if entry.type != "DELETED":
                    items[key] = entry.object
        return list(items.values())

    def since(self, collection: str, version: int) -> Iterator[Happened]:
        start = bisect.bisect_right(self.log, version, key=lambda entry: entry.version)
        return (entry for entry in self.log[start:] if entry.collection == collection)

    def _list(self, collection: str, namespace: str, query: Mapping[str, Any]) -> Object:
        # `seenAt` is how far the API server that is asked has come, when the client lets it answer from its cache.
        version = min(int(query["seenAt"]), self._version) if "resourceVersion" in query else self._version
        version = max(version, int(query.get("resourceVersion") or 0))
        items = self.snapshot(collection, version)
        listed = [item for item in items if namespace in ("", item["metadata"].get("namespace", ""))]
        listed = [item for item in listed if selects(query, item)]
        kind = _KINDS[collection]
        return {
            "apiVersion": kind[0],
            "kind": f"{kind[1]}List",
            "metadata": {"resourceVersion": str(version)},
            "items": copy.deepcopy(listed),
        }

    def _replace(self, key: Key, document: Object, body: Object, subresource: str) -> Object:
        self._check_uid(document, body["metadata"].get("uid"))
        if body["metadata"].get("resourceVersion") not in (None, "", document["metadata"]["resourceVersion"]):
            raise api_errors.Conflict("the object has been modified", status=409, reason="Conflict")
        kept = "spec" if subresource == "status" else "status"
        after = copy.deepcopy(body)
        after["metadata"] = copy.deepcopy(document["metadata"])
        after[kept] = copy.deepcopy(document.get(kept))
        return self._store(key, after, "MODIFIED")

    def _patch(self, key: Key, document: Object, body: Any, content_type: str) -> Object:
        if content_type == "application/json-patch+json":
            try:
                after = jsonpatch.apply_patch(copy.deepcopy(document), body)
            except jsonpatch.JsonPatchException as error:
                raise api_errors.Invalid(str(error), status=422) from error
        else:
            self._check_uid(document, (body.get("metadata") or {}).get("uid"))
            after = _merged(document, body)
        return self._store(key, after, "MODIFIED")

    def _check_uid(self, document: Object, uid: str | None) -> None:
        if uid not in (None, "", document["metadata"]["uid"]):
            raise api_errors.Conflict("the UID is another's", status=409, reason="Conflict")

    def _store(self, key: Key, item: Object, kind: str) -> Object:
        before = self.objects.get(key)
        if before is not None and before == item:
            return copy.deepcopy(before)  # a write that changes nothing gets no new version
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self.objects[key] = item
        self.log.append(Happened(self._version, key[0], kind, item))
        return copy.deepcopy(item)


def parse(path: str) -> tuple[str, str, str, str]:
    """Split a path into collection, namespace, name and subresource."""
    parts = path.strip("/").split("/")
    if parts[:3] == ["api", "v1", "namespaces"] and len(parts) >= 5 and parts[4] == "pods":
        rest = [*parts[5:], "", ""]
        return PODS, parts[3], rest[0], rest[1]
    for collection in _KINDS:
        if path == collection or path.startswith(collection + "/"):
            name, _, subresource = path[len(collection) + 1 :].partition("/")
            return collection, "", name, subresource
    raise AssertionError(f"the simulated API server has nothing at {path}")


def selects(query: Mapping[str, Any], item: Mapping[str, Any]) -> bool:
    """Whether a list or a watch with these selectors shows the object."""
    key, _, value = str(query.get("labelSelector", "")).partition("=")
    if key and (item["metadata"].get("labels") or {}).get(key) != value:
        return False
    phase = str((item.get("status") or {}).get("phase", ""))
    verdicts = {"status.phase!=": lambda text: text != phase, "metadata.name=": item["metadata"]["name"].__eq__}
    fields = [term for term in str(query.get("fieldSelector", "")).split(",") if term]
    known = [(term, start) for term in fields for start in verdicts if term.startswith(start)]
    assert len(known) == len(fields), fields
    return all(verdicts[start](term.removeprefix(start)) for term, start in known)


def _merged(document: Any, change: Any) -> Any:
    if not isinstance(change, Mapping) or not isinstance(document, Mapping):
        return copy.deepcopy(change)
    after = {key: value for key, value in document.items() if not (key in change and change[key] is None)}
    after.update({key: _merged(document.get(key, {}), value) for key, value in change.items() if value is not None})
    return after
