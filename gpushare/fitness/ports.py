"""Host ports: which a pod takes on its node, and whether two pods' get in each other's way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gpushare import pod
from gpushare.fitness import resources

# (address, protocol, number)
Port = tuple[str, str, int]

ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - compared, not listened on


def of(manifest: pod.PodJson) -> tuple[Port, ...]:
    """Those of containers that run all the time; on the host's network every port is one."""
    on_host = bool((manifest.get("spec") or {}).get("hostNetwork"))
    lasting = [one for one in pod.init_containers(manifest) if resources.is_sidecar(one)]
    found = {port for one in (*lasting, *pod.containers(manifest)) for port in _declared(one, on_host=on_host)}
    return tuple(sorted(found))


def conflict(wanted: Iterable[Port], used: Iterable[Port]) -> Port | None:
    """The first wanted port that is in use. One on all addresses conflicts with the same on any."""
    taken = set(used)
    for address, protocol, number in wanted:
        for other, other_protocol, other_number in taken:
            if (protocol, number) != (other_protocol, other_number):
                continue
            if address == other or ANY_ADDRESS in (address, other):
                return address, protocol, number
    return None


def _declared(container: Mapping[str, Any], *, on_host: bool) -> Iterator[Port]:
    for port in container.get("ports") or []:
        number = int(port.get("hostPort") or (port.get("containerPort") if on_host else 0) or 0)
        if number > 0:
            yield str(port.get("hostIP") or ANY_ADDRESS), str(port.get("protocol") or "TCP"), number
