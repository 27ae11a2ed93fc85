"""What an agent can see of how containers of its node get devices. Values only."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class InjectionFacts:
    """All of it.

    in_pod: whether this is a container at all; of what runs beside a cluster nothing follows for containers.
    runtime: as the Node names it, `containerd://1.7.24`; empty while that is unknown.
    runtime_class: of the agent's own pod; empty for none, None while that is unknown.
    asked: whether the agent's container asks for a driver in its environment.
    driver_mounted: whether a runtime mounted one.
    default_runtime, cdi_enabled: what the runtime's configuration says; None where that is not to be seen.
    undescribed: why this agent cannot describe devices for CDI, with the remedy; empty if it can.
    """

    in_pod: bool = False
    runtime: str = ""
    runtime_class: str | None = None
    asked: bool = False
    driver_mounted: bool = False
    default_runtime: str | None = None
    cdi_enabled: bool | None = None
    undescribed: str = ""
