"""Decides how containers get devices, and explains it for the GPUNode.

A configured strategy is used as it is. Without one, the agent uses what it has seen to work: the environment, if
NVIDIA's runtime gave the agent's own container a driver because it is the node's default runtime; CDI, if the runtime
supports it and this agent can write the specifications; and the environment again for pods that name the agent's
RuntimeClass. Strategies that are known not to work are refused, because a container would start without a GPU.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from deviceplugin.allocation import answer
from deviceplugin.state.node_state import ModesInForce, Observable
from gpushare import pod
from gpushare.config.node_settings import NodeSettings
from gpushare.contract import CONDITION_DEVICES_INJECTED as INJECTED
from gpushare.contract import REASON_NOTHING_INJECTS
from gpushare.gpunode import Condition
from gpushare.modes import assignment
from gpushare.pod import PodJson

_MAX_NAMED: Final = 20  # containers in a message
_CLASS: Final = "nvidia"  # prefix of NVIDIA's runtimes: nvidia, nvidia-cdi, nvidia-legacy
# The first versions that support CDI, and the first that enable it by default.
_KNOWS: Final = {"containerd": (1, 7), "cri-o": (1, 28)}
_USES: Final = {"containerd": (2, 0), "cri-o": (1, 28)}
_REMEDY: Final = (
    "make NVIDIA's runtime the node's default, or run the agent with its RuntimeClass (component "
    "runtime-class), or use a runtime that supports CDI and add the component cdi"
)


@dataclasses.dataclass(frozen=True, slots=True)
class InjectionFacts:
    """Observations of the agent about device injection on its node.

    in_pod: whether the agent runs in a pod; otherwise it cannot observe anything about containers. runtime: as the Node
    reports it, for example `containerd://1.7.24`; empty while unknown. runtime_class: of the agent's own pod; empty for
    none, None while unknown. driver_requested: whether the agent's container requests a driver in its environment.
    driver_mounted: whether a runtime mounted a driver. default_runtime, cdi_enabled: from the runtime's configuration;
    None if not visible. cdi_problem: why this agent cannot write CDI specifications, with the remedy; empty if it can.
    """

    in_pod: bool = False
    runtime: str = ""
    runtime_class: str | None = None
    driver_requested: bool = False
    driver_mounted: bool = False
    default_runtime: str | None = None
    cdi_enabled: bool | None = None
    cdi_problem: str = ""


class Works(enum.IntEnum):
    """Whether a strategy works; higher is better."""

    NO = 0
    UNKNOWN = 1
    BY_CLASS = 2  # only for pods that name the RuntimeClass
    YES = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Injection:
    """The decision. strategies: as in a configuration.

    needs_class: the RuntimeClass that pods must name; empty if none. refusal: why no device is injected; empty if they
    are.
    """

    strategies: tuple[str, ...]
    condition: Condition
    needs_class: str = ""
    refusal: str = ""

    def condition_with(self, missing: Sequence[str]) -> Condition:
        """Return the condition. missing: containers that run without devices, which make the condition False."""
        if not missing:
            return self.condition
        more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
        message = f"running without any GPU: {', '.join(missing[:_MAX_NAMED])}{more}; {self.condition.message}"
        return Condition(INJECTED, "False", "DevicesMissing", message)

    @property
    def uses_cdi(self) -> bool:
        return any(map(answer.uses_cdi, self.strategies))

    def allows(self, runtime_class: str) -> bool:
        """Whether pods with this RuntimeClass (empty for none) get their devices."""
        return not self.needs_class or runtime_class == self.needs_class or runtime_class.startswith(_CLASS)


@dataclasses.dataclass(frozen=True, slots=True)
class _Assessment:
    """A strategy, whether it works, and why, as a clause."""

    strategy: str
    works: Works
    why: str


def decide(facts: InjectionFacts, named: tuple[str, ...]) -> Injection:
    """Decide how devices are injected. named: the configured strategies; empty if none are configured."""
    if not facts.in_pod:
        why = "this agent does not run in a pod, so it cannot see how containers get devices"
        return _unknown(named or (answer.ENVVAR,), why)
    if named:
        assessments = [_assess(strategy, facts) for strategy in named]
    else:
        environment, by_cdi = _assess(answer.ENVVAR, facts), _assess(answer.CDI_CRI, facts)
        # CDI may be disabled without notice. Unless it is configured, use it only if it is known to be enabled.
        certain = by_cdi.works is Works.YES
        assessments = [environment, by_cdi if certain else dataclasses.replace(by_cdi, works=Works.NO)]
    best = max(assessments, key=lambda one: one.works)  # ties go to the first
    strategies = named or (best.strategy,)
    if best.works is Works.NO:
        reasons = "; ".join(f"{one.strategy}: {one.why}" for one in assessments)
        sentence = f"containers would get no GPU: {reasons}; {_REMEDY}"
        return Injection(strategies, Condition(INJECTED, "False", REASON_NOTHING_INJECTS, sentence), refusal=sentence)
    if best.works is Works.UNKNOWN:
        return _unknown(strategies, best.why)
    if best.works is Works.BY_CLASS:
        name = facts.runtime_class or ""
        sentence = (
            f"{best.why}: pods must set runtimeClassName: {name}; share containers of other pods are refused at "
            "their start"
        )
        return Injection(strategies, Condition(INJECTED, "True", "RuntimeClass", sentence), needs_class=name)
    reason = "CdiDevices" if answer.uses_cdi(best.strategy) else "DefaultRuntime"
    return Injection(strategies, Condition(INJECTED, "True", reason, f"{best.strategy}: {best.why}"))


def _unknown(strategies: tuple[str, ...], why: str) -> Injection:
    sentence = f"{', '.join(strategies)}, not verified: {why}"
    return Injection(strategies, Condition(INJECTED, "Unknown", "NotSeen", sentence))


def _assess(strategy: str, facts: InjectionFacts) -> _Assessment:
    if not answer.uses_cdi(strategy):
        return _Assessment(strategy, *_assess_environment(facts))
    works, why = _assess_cdi(facts)
    if strategy == answer.CDI_ANNOTATIONS and works is Works.NO and not facts.cdi_problem:
        # NVIDIA's runtime can be configured to read the annotations itself.
        works = min(_assess_environment(facts)[0], Works.UNKNOWN)
    return _Assessment(strategy, works, why)


def _assess_environment(facts: InjectionFacts) -> tuple[Works, str]:
    """Assess whether NVIDIA's runtime acts on any container's environment and device-like mounts."""
    if facts.default_runtime is not None and facts.default_runtime.startswith(_CLASS):
        return Works.YES, f"the node's default runtime is {facts.default_runtime}"
    if facts.driver_mounted and facts.driver_requested:
        if facts.runtime_class is None:
            return Works.UNKNOWN, "the RuntimeClass of the agent's pod is not known yet"
        if facts.runtime_class:
            return Works.BY_CLASS, f"NVIDIA's runtime is used by RuntimeClass {facts.runtime_class}"
        return Works.YES, "the node's default runtime gave the agent's own container its driver"
    if facts.driver_requested:
        return Works.NO, "the agent's own container requested a driver from NVIDIA's runtime and got none"
    unset = "the agent's container does not set NVIDIA_VISIBLE_DEVICES=all"
    return Works.UNKNOWN, f"{unset}, so it cannot see whether NVIDIA's runtime is used"


def _assess_cdi(facts: InjectionFacts) -> tuple[Works, str]:
    """Assess whether the container runtime supports CDI and this agent's specifications are complete."""
    if facts.cdi_problem:
        return Works.NO, facts.cdi_problem
    if not facts.runtime:
        return Works.UNKNOWN, "the node's container runtime is not known yet"
    match = re.match(r"([a-z-]+)://v?(\d+)\.(\d+)", facts.runtime)
    if match is None or match[1] not in _KNOWS:
        return Works.UNKNOWN, f"it is unknown whether {facts.runtime} supports CDI"
    name, version = match[1], (int(match[2]), int(match[3]))
    if version < _KNOWS[name]:
        return Works.NO, f"{facts.runtime} ignores CDI: it needs {name} {'.'.join(map(str, _KNOWS[name]))}"
    if name == "containerd" and facts.cdi_enabled is not None:
        word = str(facts.cdi_enabled).lower()
        return (Works.YES if facts.cdi_enabled else Works.NO), f"enable_cdi is {word} in containerd's configuration"
    if version < _USES[name]:
        why = f"{facts.runtime} ignores CDI unless enable_cdi = true, and its configuration is not visible"
        return Works.UNKNOWN, why
    return Works.YES, f"{facts.runtime} supports CDI, and this agent writes the specifications"


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

    def injection(self) -> Injection:
        own = [pod.runtime_class(manifest) for manifest in self.pods() if self.pod_uid == pod.uid(manifest)]
        own_class = own[0] if own and self.pod_uid else None
        facts = dataclasses.replace(self.facts, runtime=self.runtime(), runtime_class=own_class)
        settings = self.in_force.value.settings
        return decide(facts, settings.device_list_strategies if settings.names_strategies else ())

    def settings(self) -> NodeSettings:
        return dataclasses.replace(self.in_force.value.settings, device_list_strategies=self.injection().strategies)

    @property
    def offered(self) -> assignment.DeviceOffer:
        return self.in_force.value.offered

    @property
    def closed(self) -> frozenset[str]:
        return self.in_force.value.closed

    @property
    def refusal(self) -> str:
        """Why containers get no device, if no strategy is configured; empty if they get one."""
        return "" if self.in_force.value.settings.names_strategies else self.injection().refusal
