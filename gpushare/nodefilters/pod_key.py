"""PodKey: the fields of a pod that the node filters read, except inter-pod affinity.

Pods from one template have equal keys, so filter results are cached by key.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from gpushare import contract, pod
from gpushare.nodefilters import pod_requests, ports, selectors, taints

_OWN: Final = frozenset({contract.RESOURCE_PERCENT, contract.RESOURCE_MEMORY, contract.RESOURCE_IDLE})


@dataclasses.dataclass(frozen=True, slots=True)
class PodKey:
    """Compared by value. `amounts`: in the order of messages. `own`: gpushare's resources, which the ledger counts,
    too.
    """

    tolerations: tuple[taints.Toleration, ...] = ()
    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[selectors.NodeTerm, ...] | None = None
    amounts: tuple[tuple[str, int], ...] = ()
    own: tuple[tuple[str, int], ...] = ()
    ports: ports.WantedPorts = ports.NO_PORTS
    _hash: list[int] = dataclasses.field(default_factory=list, compare=False, repr=False)

    def __hash__(self) -> int:
        """Return the hash, computed once: a key may be large, and is hashed often."""
        if not self._hash:
            parts = (self.tolerations, self.selector, self.terms, self.amounts, self.own, self.ports)
            self._hash.append(hash(parts))
        return self._hash[0]

    @classmethod
    def from_manifest(cls, manifest: pod.PodJson) -> PodKey:
        """Read a pod that is to be placed."""
        spec = manifest.get("spec") or {}
        required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
            "requiredDuringSchedulingIgnoredDuringExecution"
        )
        amounts = tuple(pod_requests.ordered(pod_requests.requests(manifest)))
        return cls(
            tolerations=taints.tolerations(spec.get("tolerations")),
            selector=tuple(sorted((key, str(value)) for key, value in (spec.get("nodeSelector") or {}).items())),
            terms=selectors.of_nodes(required),
            amounts=tuple(amount for amount in amounts if amount[0] not in _OWN),
            own=tuple(amount for amount in amounts if amount[0] in _OWN),
            ports=ports.WantedPorts.from_manifest(manifest),
        )
