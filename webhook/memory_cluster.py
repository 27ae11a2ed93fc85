"""A cluster in memory: what an API server would do around an admission, and the result in a file.

Pods that are admitted get the name, uid and creation time that a real one would have got; a placed one is confirmed at
once. After each admission the whole state is written to a file that `kubectl gpushare --from FILE` reads.
"""

from __future__ import annotations

import datetime
import json
import random
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jsonpatch
import yaml

from gpushare import contract, ledger, pod
from gpushare.allocation import PodRef
from webhook import review
from webhook.admission import Admission
from webhook.ledger.memory_store import MemoryStore

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"  # of generated names, as in Kubernetes: they spell nothing


class UnreadableError(ValueError):
    """The file is no cluster; the message says why."""


class MemoryCluster:
    """Admits reviews and keeps what becomes of them; `state`: where to write it, or None."""

    def __init__(self, ledger_now: MemoryStore, admission: Admission, pods: Iterable[Any], state: Path | None) -> None:
        self._store = ledger_now
        self._admission = admission
        self._pods = list(pods)
        self._state = state
        self.save()

    async def admit(self, request: review.AdmissionRequest) -> review.Answer:
        """Answer a review, and store the pod if it is admitted."""
        answer = await self._admission.answer(request)
        if answer.allowed and request["operation"] == "CREATE" and not request.get("dryRun"):
            patch: Any = list(answer.patch)
            stored = _stored(jsonpatch.apply_patch(request["object"], patch), request)
            self._confirm(stored)
            self._pods.append(stored)
            self.save()
        return answer

    def save(self) -> None:
        """Write the state, whole or not at all."""
        if self._state is None:
            return
        state = {"apiVersion": "v1", "kind": "List", "items": [*self._store.documents(), *self._pods]}
        new = self._state.with_name(f".{self._state.name}.new")
        new.write_text(json.dumps(state, indent=1))
        new.replace(self._state)

    def _confirm(self, stored: Mapping[str, Any]) -> None:
        annotations = pod.annotations_of(stored)
        if contract.ALLOCATION in annotations:
            holder = PodRef(*pod.namespaced_name(stored), pod.uid(stored))
            self._store.change(
                annotations[contract.NODE],
                lambda node: ledger.confirm(node, {annotations[contract.ALLOCATION]: holder}),
            )


def read(path: Path) -> tuple[MemoryStore, list[dict[str, Any]]]:
    """The GPUNodes (and Nodes) and the pods in a YAML or JSON file of objects or Lists. Raises UnreadableError."""
    try:
        documents = list(yaml.load_all(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UnreadableError(f"cannot read {path}: {error}") from error
    kinds: dict[str, list[dict[str, Any]]] = {contract.GPUNODE_KIND: [], "Node": [], "Pod": []}
    for item in _items(documents):
        kind = item.get("kind") if isinstance(item, dict) else None
        if kind not in kinds:
            raise UnreadableError(
                f"{path} has an object of kind {kind!r}: write GPUNode, Node and Pod objects, or a List"
            )
        kinds[kind].append(item)
    if not kinds[contract.GPUNODE_KIND]:
        raise UnreadableError(f"{path} has no GPUNode: without one there is no GPU to give")
    try:
        return MemoryStore(kinds[contract.GPUNODE_KIND], kinds["Node"], kinds["Pod"]), kinds["Pod"]
    except ValueError as error:
        raise UnreadableError(f"{path}: {error}") from error


def _items(documents: Iterable[Any]) -> Iterable[Any]:
    for document in documents:
        if isinstance(document, dict) and str(document.get("kind", "")).endswith("List"):
            yield from document.get("items") or []
        elif document is not None:
            yield document


def _stored(manifest: dict[str, Any], request: review.AdmissionRequest) -> dict[str, Any]:
    given = manifest.get("metadata") or {}
    suffix = "".join(random.choices(_SUFFIX, k=5))  # noqa: S311 - a name, no secret
    metadata = {
        **given,
        "name": given.get("name") or f"{given.get('generateName', 'pod-')}{suffix}",
        "namespace": request.get("namespace") or given.get("namespace") or "default",
        "uid": given.get("uid") or str(uuid.uuid4()),
        "creationTimestamp": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}",
    }
    return {"apiVersion": "v1", "kind": "Pod", **manifest, "metadata": metadata, "status": {"phase": "Pending"}}
