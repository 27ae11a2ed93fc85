"""How devices are given on a node, and what the GPUNode says of it. Pure.

What a configuration names is done as it says. Where it names nothing, the agent takes what it has seen to work: the
environment, if NVIDIA's runtime gave the agent's own container a driver that one and is nobody's choice but the node's;
CDI, if the runtime knows it and this agent can describe the devices; the environment again for pods that name the
agent's own RuntimeClass. What is known not to work is refused: a container would start, and have no GPU.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Sequence
from typing import Final

from deviceplugin.allocation import answer, cdi
from gpushare.contract import CONDITION_DEVICES_INJECTED as INJECTED
from gpushare.contract import REASON_NOTHING_INJECTS
from gpushare.gpunode import Condition

_MAX_NAMED: Final = 20  # containers
_CLASS: Final = "nvidia"  # how names of NVIDIA's runtimes begin: nvidia, nvidia-cdi, nvidia-legacy
# The first versions that know CDI, and those that use it unless they are told not to.
_KNOWS: Final = {"containerd": (1, 7), "cri-o": (1, 28)}
_USES: Final = {"containerd": (2, 0), "cri-o": (1, 28)}
_REMEDY: Final = (
    "make NVIDIA's runtime the node's default, or run the agent with its RuntimeClass (component "
    "runtime-class), or use a runtime that supports CDI and add the component cdi"
)
_ASKS: Final = "NVIDIA_VISIBLE_DEVICES=all"


@dataclasses.dataclass(frozen=True, slots=True)
class InjectionFacts:
    """All of it.

    in_pod: whether this is a container at all; of what runs beside a cluster nothing follows for containers.
    runtime: as the Node names it, `containerd://1.7.24`; empty while that is unknown.
    runtime_class: of the agent's own pod; empty for none, None while that is unknown.
    asked: whether the agent's container asks for a driver in its environment.
    driver_mounted: whether a runtime mounted one.
    default_runtime, cdi_enabled: what the runtime's configuration says; None where that is not to be seen.
    cdi_problem: why this agent cannot describe devices for CDI, with the remedy; empty if it can.
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
    """Whether a one of giving devices works, the better the larger."""

    NO = 0
    UNKNOWN = 1
    BY_CLASS = 2  # for pods that name the RuntimeClass
    YES = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Injection:
    """How devices are given: `strategies` as in a configuration.

    needs_class: the RuntimeClass that a pod has to name, empty if none; refusal: why nothing is given, empty if it is.
    """

    strategies: tuple[str, ...]
    condition: Condition
    needs_class: str = ""
    refusal: str = ""

    def condition_with(self, missing: Sequence[str]) -> Condition:
        """The condition. missing: containers that run without devices, whatever should have given them some."""
        if not missing:
            return self.condition
        more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
        message = f"running without any GPU: {', '.join(missing[:_MAX_NAMED])}{more}; {self.condition.message}"
        return Condition(INJECTED, "False", "DevicesMissing", message)

    @property
    def uses_cdi(self) -> bool:
        """Whether containers are told names of CDI."""
        return any(map(cdi.is_strategy, self.strategies))

    def allows(self, runtime_class: str) -> bool:
        """Whether a pod of this RuntimeClass, empty for none, gets what it is given."""
        return not self.needs_class or runtime_class == self.needs_class or runtime_class.startswith(_CLASS)


@dataclasses.dataclass(frozen=True, slots=True)
class _Assessment:
    """One strategy, whether it works, and why so, as a clause."""

    strategy: str
    works: Works
    why: str


def decide(facts: InjectionFacts, named: tuple[str, ...]) -> Injection:
    """What is to be done and said. named: the strategies that the configuration names; none if it names none."""
    if not facts.in_pod:
        why = "this agent does not run in a pod, so it cannot see how containers get devices"
        return _unknown(named or (answer.ENVVAR,), why)
    if named:
        assessments = [_assess(strategy, facts) for strategy in named]
    else:
        assessments = [_assess(answer.ENVVAR, facts), _assess(cdi.CRI, facts)]
        # What may be off without a word is for those to name who know that it is on.
        assessments = (
            [assessments[0], dataclasses.replace(assessments[1], works=Works.NO)]
            if assessments[1].works < Works.YES
            else assessments
        )
    best = max(assessments, key=lambda one: one.works)  # the first of those that are equally good
    strategies = named or (best.strategy,)
    if best.works is Works.NO:
        return _refused(strategies, assessments)
    if best.works is Works.UNKNOWN:
        return _unknown(strategies, best.why)
    if best.works is Works.BY_CLASS:
        name = facts.runtime_class or ""
        sentence = (
            f"{best.why}: pods must set runtimeClassName: {name}; share containers of other pods are refused at "
            "their start"
        )
        return Injection(strategies, Condition(INJECTED, "True", "RuntimeClass", sentence), needs_class=name)
    if cdi.is_strategy(best.strategy):
        return Injection(strategies, Condition(INJECTED, "True", "CdiDevices", f"{best.strategy}: {best.why}"))
    return Injection(strategies, Condition(INJECTED, "True", "DefaultRuntime", f"{best.strategy}: {best.why}"))


def _unknown(strategies: tuple[str, ...], why: str) -> Injection:
    sentence = f"{', '.join(strategies)}, not verified: {why}"
    return Injection(strategies, Condition(INJECTED, "Unknown", "NotSeen", sentence))


def _refused(strategies: tuple[str, ...], assessments: list[_Assessment]) -> Injection:
    sentence = (
        f"containers would get no GPU: {'; '.join(f'{one.strategy}: {one.why}' for one in assessments)}; {_REMEDY}"
    )
    return Injection(strategies, Condition(INJECTED, "False", REASON_NOTHING_INJECTS, sentence), refusal=sentence)


def _assess(strategy: str, facts: InjectionFacts) -> _Assessment:
    if not cdi.is_strategy(strategy):
        return _Assessment(strategy, *_assess_environment(facts))
    works, why = _assess_cdi(facts)
    if strategy == cdi.ANNOTATIONS and works is Works.NO and not facts.cdi_problem:
        # NVIDIA's runtime reads annotations itself where it is made to, as before runtimes knew of CDI.
        works = min(_assess_environment(facts)[0], Works.UNKNOWN)
    return _Assessment(strategy, works, why)


def _assess_environment(facts: InjectionFacts) -> tuple[Works, str]:
    """Whether NVIDIA's runtime goes by the environment (and by mounts that stand for devices) of any container."""
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
    return (
        Works.UNKNOWN,
        f"the agent's container does not set {_ASKS}, so it cannot see whether NVIDIA's runtime is used",
    )


def _assess_cdi(facts: InjectionFacts) -> tuple[Works, str]:
    """Whether the container runtime goes by names of CDI, and knows those of this agent."""
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
        return (
            Works.UNKNOWN,
            f"{facts.runtime} ignores CDI unless enable_cdi = true, and its configuration is not visible",
        )
    return Works.YES, f"{facts.runtime} supports CDI, and this agent writes the specifications"
