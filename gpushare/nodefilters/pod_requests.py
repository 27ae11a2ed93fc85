"""Pod requests: the CPU, memory, other counted resources and host ports of a pod, by the scheduler's formula.

App containers run together and are summed. Init containers run one at a time, next to the sidecars started before them;
the largest such moment counts. For a running pod, resources that the kubelet has allocated count, too: a pod that
shrinks still holds the old amount (https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/,
https://kubernetes.io/docs/tasks/configure-pod-container/resize-container-resources/).
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gpushare import errors, pod, quantity

# Resource -> amount: milli-CPUs for `cpu`, else bytes or pieces.
Amounts = Mapping[str, int]

CPU: Final = "cpu"
MEMORY: Final = "memory"
EPHEMERAL_STORAGE: Final = "ephemeral-storage"
PODS: Final = "pods"

_NANOS: Final = 10**9  # Kubernetes keeps quantities to nine decimal places
_PLAIN: Final = frozenset({CPU, MEMORY, EPHEMERAL_STORAGE})
_HUGE_PAGES: Final = "hugepages-"
_ATTACHABLE: Final = "attachable-volumes-"


def is_counted(name: str) -> bool:
    """Whether the scheduler counts this resource on a node."""
    return name in _PLAIN or "/" in name or name.startswith((_HUGE_PAGES, _ATTACHABLE))


def allocatable(declared: Mapping[str, Any]) -> dict[str, int]:
    """Return a node's allocatable amounts, including `pods`. An invalid quantity counts as 0."""
    return _rounded({name: _nanos(str(text)) for name, text in declared.items() if is_counted(name) or name == PODS})


def requests(manifest: pod.PodJson, *, running: bool = False) -> dict[str, int]:
    """Return a pod's requests, without zeros. `running`: include what the pod's status says that it holds."""
    spec = manifest.get("spec") or {}
    held = _Held(manifest) if running else None
    total: dict[str, int] = {}
    for container in pod.containers(manifest):
        _add(total, _effective(container, held))
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in pod.init_containers(manifest):
        if pod.is_sidecar(container):
            own = _effective(container, held)
            _add(total, own)
            _add(sidecars, own)
            _raise(peak, sidecars)
        else:
            moment = _declared(container.get("resources"))
            _add(moment, sidecars)
            _raise(peak, moment)
    _raise(total, peak)
    whole = _declared(spec.get("resources"))
    if held is not None and held.of_pod is not None:
        whole = {name: held.effective(whole, held.of_pod).get(name, 0) for name in whole}
    total.update((name, whole[name]) for name in whole if name in {CPU, MEMORY} or name.startswith(_HUGE_PAGES))
    _add(total, _read(spec.get("overhead")))
    return {name: amount for name, amount in _rounded(total).items() if amount and is_counted(name)}


class _Held:
    """The resources that the kubelet has allocated to a running pod, from its status."""

    def __init__(self, manifest: pod.PodJson) -> None:
        status = manifest.get("status") or {}
        entries = [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]
        self.containers: Mapping[str, Any] = {str(entry.get("name")): entry for entry in entries}
        self.of_pod: Mapping[str, Any] | None = status if status.get("resources") is not None else None
        pending = [each for each in status.get("conditions") or [] if each.get("type") == "PodResizePending"]
        self._is_infeasible = bool(pending) and pending[0].get("reason") == "Infeasible"

    def effective(self, asked: Mapping[str, int], status: Mapping[str, Any]) -> dict[str, int]:
        """Return the maximum of requested, allocated and actual amounts; an infeasible resize is not counted."""
        most = {} if self._is_infeasible else dict(asked)
        _raise(most, _read((status.get("resources") or {}).get("requests")))
        _raise(most, _read(status.get("allocatedResources")))
        return most


def _effective(container: Mapping[str, Any], held: _Held | None) -> dict[str, int]:
    asked = _declared(container.get("resources"))
    if held is None:
        return asked
    status = held.containers.get(str(container.get("name"))) or {}
    return held.effective(asked, status) if status.get("resources") is not None else asked


def _declared(resources: Mapping[str, Any] | None) -> dict[str, int]:
    """Return the requests, which default to the limits as in the API server."""
    resources = resources or {}
    return _read({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _read(declared: Mapping[str, Any] | None) -> dict[str, int]:
    return {name: _nanos(str(text)) for name, text in (declared or {}).items()}


@functools.lru_cache(maxsize=4096)
def _nanos(text: str) -> int:
    try:
        value = quantity.parse(text) * _NANOS
    except errors.QuantityError:
        return 0
    return -(-value.numerator // value.denominator)


def _rounded(nanos: Mapping[str, int]) -> dict[str, int]:
    """Round complete sums up: CPU to milli-CPUs, everything else to whole units."""
    return {name: -(-amount // (_NANOS // 1000 if name == CPU else _NANOS)) for name, amount in nanos.items()}


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _raise(total: dict[str, int], least: Mapping[str, int]) -> None:
    for name, amount in least.items():
        if amount > total.get(name, 0):
            total[name] = amount


def format_amount(name: str, amount: int) -> str:
    """Format an amount for people: `500m` or `2` CPUs, `8Gi` for bytes, otherwise the number."""
    if name == CPU:
        return f"{amount}m" if amount % 1000 else str(amount // 1000)
    is_bytes = name in {MEMORY, EPHEMERAL_STORAGE} or name.endswith("memory") or name.startswith(_HUGE_PAGES)
    return quantity.format_bytes(amount) if is_bytes else str(amount)


def ordered(amounts: Amounts) -> Iterable[tuple[str, int]]:
    """Sort CPU, memory and ephemeral storage first, then by name; messages report the first shortage."""
    order = (CPU, MEMORY, EPHEMERAL_STORAGE)
    return sorted(amounts.items(), key=lambda item: (order.index(item[0]) if item[0] in order else len(order), item[0]))


# (address, protocol, number)
Port = tuple[str, str, int]

ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - compared, not listened on


def host_ports(manifest: pod.PodJson) -> tuple[Port, ...]:
    """Return the host ports of app containers and sidecars; with `hostNetwork`, all their ports."""
    on_host = bool((manifest.get("spec") or {}).get("hostNetwork"))
    lasting = [init_container for init_container in pod.init_containers(manifest) if pod.is_sidecar(init_container)]
    ports = {
        port
        for container in (*lasting, *pod.containers(manifest))
        for port in _declared_ports(container, on_host=on_host)
    }
    return tuple(sorted(ports))


class Ports:
    """The ports in use on one node, with the number of pods. A lookup costs the same for any number of ports."""

    __slots__ = ("_by_number",)

    def __init__(self) -> None:
        self._by_number: dict[tuple[str, int], collections.Counter[str]] = {}  # (protocol, number) -> addresses

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ports) and self._by_number == other._by_number

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> Ports:
        """Return an independent copy."""
        rest = Ports()
        rest._by_number = {key: addresses.copy() for key, addresses in self._by_number.items()}
        return rest

    def change(self, port: Port, sign: int) -> None:
        """Count one more pod with this port, or (-1) one less."""
        address, protocol, number = port
        addresses = self._by_number.setdefault((protocol, number), collections.Counter())
        addresses[address] += sign
        if not addresses[address]:
            del addresses[address]
        if not addresses:
            del self._by_number[protocol, number]

    def conflict(self, wanted: WantedPorts) -> Port | None:
        """Return the first wanted port that is in use. The any-address 0.0.0.0 conflicts with every address."""
        if wanted.numbers.isdisjoint(self._by_number):
            return None
        for address, protocol, number in wanted.ports:
            used = self._by_number.get((protocol, number))
            if used and (address == ANY_ADDRESS or address in used or ANY_ADDRESS in used):
                return address, protocol, number
        return None


@dataclasses.dataclass(frozen=True, slots=True)
class WantedPorts:
    """The ports of a pod that is to be placed, prepared for checks on many nodes."""

    ports: tuple[Port, ...] = ()
    numbers: frozenset[tuple[str, int]] = dataclasses.field(default=frozenset(), compare=False)

    @classmethod
    def from_manifest(cls, manifest: pod.PodJson) -> WantedPorts:
        """Read the host ports of a pod."""
        ports = host_ports(manifest)
        return cls(ports, frozenset((protocol, number) for _, protocol, number in ports))

    def __bool__(self) -> bool:
        return bool(self.ports)


NO_PORTS: Final = WantedPorts()


def _declared_ports(container: Mapping[str, Any], *, on_host: bool) -> Iterator[Port]:
    for port in container.get("ports") or []:
        number = int(port.get("hostPort") or (port.get("containerPort") if on_host else 0) or 0)
        if number > 0:
            yield str(port.get("hostIP") or ANY_ADDRESS), str(port.get("protocol") or "TCP"), number
