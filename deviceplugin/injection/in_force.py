"""The node settings in force, combined with the injection decision."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from deviceplugin.injection import decision
from deviceplugin.injection.decision import InjectionFacts
from deviceplugin.state.node_state import ModesInForce
from deviceplugin.state.offer import Observable
from gpushare import pod
from gpushare.config.node_settings import NodeSettings
from gpushare.modes.assignment import DeviceOffer
from gpushare.pod import PodJson


@dataclasses.dataclass(frozen=True, slots=True)
class NodeInjection:
    """The node's settings in force; if they name no strategy, the decision provides it.

    facts: observed at startup. runtime: as the Node reports it now. pods: the node's pods, including the agent's own,
    which has `pod_uid`.
    """

    in_force: Observable[ModesInForce]
    facts: InjectionFacts
    _: dataclasses.KW_ONLY
    runtime: Callable[[], str]
    pods: Callable[[], Iterable[PodJson]]
    pod_uid: str

    def injection(self) -> decision.Injection:
        """Decide from what is known now."""
        own = (
            next((manifest for manifest in self.pods() if pod.uid(manifest) == self.pod_uid), None)
            if self.pod_uid
            else None
        )
        facts = dataclasses.replace(
            self.facts,
            runtime=self.runtime(),
            runtime_class=None if own is None else pod.runtime_class(own),
        )
        settings = self.in_force.value.settings
        return decision.decide(facts, settings.device_list_strategies if settings.names_strategies else ())

    def settings(self) -> NodeSettings:
        """Return the settings in force, with the chosen strategies."""
        return dataclasses.replace(self.in_force.value.settings, device_list_strategies=self.injection().strategies)

    @property
    def offered(self) -> DeviceOffer:
        """The devices that the node offers."""
        return self.in_force.value.offered

    @property
    def closed(self) -> frozenset[str]:
        """The GPUs that accept no new pods."""
        return self.in_force.value.closed

    @property
    def refusal(self) -> str:
        """Why containers get no device, if no strategy is configured; empty if they get one."""
        return "" if self.in_force.value.settings.names_strategies else self.injection().refusal
