"""Pod structure: whether the API server would have decoded an object as a pod, as far as the webhook reads it.

The API server sends only pods, but any client can connect to the port. The structure is checked only after a review has
failed, so it costs admissions nothing and rejects no pod that could be placed. It distinguishes an invalid pod, which
is denied, from a defect of the webhook, which is logged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from gpushare.nodefilters import volumes

_TEXT: Final = "text"
_COUNT: Final = "a whole number"
_ANY: Final = "anything"

# A kind above; {field: schema} for an object, where "*" stands for every field; [schema] for a list. Null counts as
# absent.
_TEXTS: Final = {"*": _TEXT}
_SELECTOR: Final = {"matchLabels": _TEXTS, "matchExpressions": [{"key": _TEXT, "operator": _TEXT, "values": [_TEXT]}]}
_NODE_TERM: Final = {
    "matchExpressions": [{"key": _TEXT, "operator": _TEXT, "values": [_TEXT]}],
    "matchFields": [{"key": _TEXT, "operator": _TEXT, "values": [_TEXT]}],
}
_POD_TERM: Final = {
    "topologyKey": _TEXT,
    "labelSelector": _SELECTOR,
    "namespaceSelector": _SELECTOR,
    "namespaces": [_TEXT],
    "matchLabelKeys": [_TEXT],
    "mismatchLabelKeys": [_TEXT],
}
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_RESOURCES: Final = {"limits": {"*": _ANY}, "requests": {"*": _ANY}}
_CONTAINER: Final = {
    "name": _TEXT,
    "restartPolicy": _TEXT,
    "env": [{"name": _TEXT, "value": _TEXT, "valueFrom": {"fieldRef": {"fieldPath": _TEXT}}}],
    "resources": _RESOURCES,
    "securityContext": {},
    "volumeMounts": [{"mountPath": _TEXT}],
    "volumeDevices": [{"devicePath": _TEXT}],
    "ports": [{"hostPort": _COUNT, "containerPort": _COUNT, "hostIP": _TEXT, "protocol": _TEXT}],
}
_TEMPLATE: Final = {"metadata": {"annotations": {"*": _TEXT}}, "spec": {"storageClassName": _TEXT}}
_POD: Final = {
    "metadata": {
        "name": _TEXT,
        "generateName": _TEXT,
        "namespace": _TEXT,
        "uid": _TEXT,
        "annotations": {"*": _TEXT},
        "labels": _TEXTS,
    },
    "spec": {
        "containers": [_CONTAINER],
        "initContainers": [_CONTAINER],
        "ephemeralContainers": [_CONTAINER],
        "nodeName": _TEXT,
        "nodeSelector": _TEXTS,
        "schedulingGates": [{"name": _TEXT}],
        "tolerations": [{"key": _TEXT, "operator": _TEXT, "value": _TEXT, "effect": _TEXT}],
        "affinity": {
            "nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": [_NODE_TERM]}},
            "podAffinity": {_REQUIRED: [_POD_TERM]},
            "podAntiAffinity": {_REQUIRED: [_POD_TERM]},
        },
        "topologySpreadConstraints": [
            {"topologyKey": _TEXT, "labelSelector": _SELECTOR, "matchLabelKeys": [_TEXT], "maxSkew": _COUNT,
             "minDomains": _COUNT}
        ],
        "volumes": [
            {
                "name": _TEXT,
                "persistentVolumeClaim": {"claimName": _TEXT},
                "ephemeral": {"volumeClaimTemplate": _TEMPLATE},
                **{field: {} for field in volumes.OLD_FIELDS},
            }
        ],
        "overhead": {"*": _ANY},
        "resources": _RESOURCES,
        "priority": _COUNT,
    },
    "status": {"phase": _TEXT},
}  # fmt: skip


def wrong(manifest: Any) -> str | None:
    """Return why this is not a valid pod, as a sentence with the path, or None."""
    return next(_wrong(manifest, _POD, ""), None) if manifest is not None else None


def _wrong(value: Any, schema: Any, path: str) -> Iterator[str]:
    if isinstance(schema, str):
        if _is_no(value, schema):
            yield _sentence(path, schema)
    elif isinstance(schema, dict):
        if not isinstance(value, dict):
            yield _sentence(path, "an object")
            return
        for key, entry in value.items():
            below = schema.get(key, schema.get("*"))
            # A shortcut for most fields of a large pod.
            if below is None or entry is None or (isinstance(below, str) and not _is_no(entry, below)):
                continue
            yield from _wrong(entry, below, f"{path}.{key}" if path else str(key))
    else:
        if not isinstance(value, list):
            yield _sentence(path, "a list")
            return
        for position, entry in enumerate(value):
            if entry is None:
                yield _sentence(f"{path}[{position}]", "there")
            elif not isinstance(schema[0], str) or _is_no(entry, schema[0]):
                yield from _wrong(entry, schema[0], f"{path}[{position}]")


def _is_no(value: Any, kind: str) -> bool:
    """Whether the value is not of this kind."""
    if kind == _TEXT:
        return not isinstance(value, str)
    return kind == _COUNT and (isinstance(value, bool) or not isinstance(value, int))


def _sentence(path: str, kind: str) -> str:
    return f"{path[:200] or 'the object'} is not {kind}: this is not a valid pod"
