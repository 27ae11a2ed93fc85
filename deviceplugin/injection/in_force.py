"""What is in force on the node, with the way in which its containers get devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from deviceplugin.injection import decision
from deviceplugin.injection.decision import InjectionFacts
from deviceplugin.state.node_state import ModesInForce
from deviceplugin.state.offer import Observable
from gpushare import pod
from gpushare.config.node_settings import NodeSettings
from gpushare.modes import offering
from gpushare.pod import PodJson


@dataclasses.dataclass(frozen=True, slots=True)
class NodeInjection:
    """What is in force, with the way that is chosen where the settings name none.

    facts: what was seen at the start; runtime: as the Node names it now; pods: of the node, the agent's own among them,
    which has `pod_uid`.
    """

    in_force: Observable[ModesInForce]
    facts: InjectionFacts
    _: dataclasses.KW_ONLY
    runtime: Callable[[], str]
    pods: Callable[[], Iterable[PodJson]]
    pod_uid: str

    def injection(self) -> decision.Injection:
        """How it is done now."""
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
        """Those in force, with the way that was chosen."""
        return dataclasses.replace(self.in_force.value.settings, device_list_strategies=self.injection().strategies)

    @property
    def offered(self) -> offering.Offer:
        """The devices that there are."""
        return self.in_force.value.offered

    @property
    def closed(self) -> frozenset[str]:
        """The GPUs that take nothing new."""
        return self.in_force.value.closed

    @property
    def refusal(self) -> str:
        """Why a container gets no device, where its configuration names no way; empty if it gets one."""
        return "" if self.in_force.value.settings.names_strategies else self.injection().refusal
