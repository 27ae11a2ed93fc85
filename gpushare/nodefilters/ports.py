"""Host ports: the ports that a pod occupies on its node, and conflicts between pods."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpushare import pod

# (address, protocol, number)
Port = tuple[str, str, int]

ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - compared, not listened on


def host_ports(manifest: pod.PodJson) -> tuple[Port, ...]:
    """Return the host ports of app containers and sidecars; with `hostNetwork`, all their ports."""
    on_host = bool((manifest.get("spec") or {}).get("hostNetwork"))
    lasting = [init_container for init_container in pod.init_containers(manifest) if pod.is_sidecar(init_container)]
    ports = {
        port for container in (*lasting, *pod.containers(manifest)) for port in _declared(container, on_host=on_host)
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


def _declared(container: Mapping[str, Any], *, on_host: bool) -> Iterator[Port]:
    for port in container.get("ports") or []:
        number = int(port.get("hostPort") or (port.get("containerPort") if on_host else 0) or 0)
        if number > 0:
            yield str(port.get("hostIP") or ANY_ADDRESS), str(port.get("protocol") or "TCP"), number
