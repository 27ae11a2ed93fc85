"""The injection decision: no pod gets no GPU silently, and a configured strategy is never replaced."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from deviceplugin.injection import decision
from deviceplugin.injection.decision import InjectionFacts
from gpushare import contract

ENV, CRI, ANNOTATIONS, VOLUMES = ("envvar",), ("cdi-cri",), ("cdi-annotations",), ("volume-mounts",)
UNSEEN = "--cdi-directory /var/run/cdi is not mounted from the host: add the component cdi"
# A pod whose container requested a driver; then one that got it without a RuntimeClass.
POD = InjectionFacts(
    in_pod=True, runtime="containerd://1.6.20", runtime_class="", driver_requested=True, cdi_problem=UNSEEN
)
DEFAULT = dataclasses.replace(POD, driver_mounted=True)
BY_CLASS = dataclasses.replace(DEFAULT, runtime_class="nvidia")
# A node of the GPU Operator since 25.10, with the component cdi and without a RuntimeClass.
OPERATOR = dataclasses.replace(POD, runtime="containerd://2.1.4", cdi_problem="")


@pytest.mark.parametrize(
    ("facts", "strategies", "status", "reason"),
    [
        pytest.param(DEFAULT, ENV, "True", "DefaultRuntime", id="NVIDIA's runtime is the default one"),
        pytest.param(dataclasses.replace(DEFAULT, cdi_problem=""), ENV, "True", "DefaultRuntime", id="… and CDI is there"),
        pytest.param(BY_CLASS, ENV, "True", "RuntimeClass", id="by RuntimeClass"),
        pytest.param(dataclasses.replace(BY_CLASS, default_runtime="nvidia"), ENV, "True", "DefaultRuntime", id="a class in addition to the default"),
        pytest.param(OPERATOR, CRI, "True", "CdiDevices", id="operator, containerd 2"),
        pytest.param(dataclasses.replace(OPERATOR, driver_mounted=True, runtime_class="nvidia"), CRI, "True", "CdiDevices", id="… the agent by its class"),
        pytest.param(dataclasses.replace(OPERATOR, runtime="containerd://2.1.4-k3s1"), CRI, "True", "CdiDevices", id="k3s"),
        pytest.param(dataclasses.replace(OPERATOR, runtime="cri-o://1.33.2"), CRI, "True", "CdiDevices", id="CRI-O"),
        pytest.param(dataclasses.replace(OPERATOR, runtime="containerd://1.7.27", cdi_enabled=True), CRI, "True", "CdiDevices", id="containerd 1.7 with CDI"),
        pytest.param(dataclasses.replace(OPERATOR, runtime="containerd://1.7.27"), ENV, "False", "NothingInjects", id="containerd 1.7, CDI unknown"),
        pytest.param(dataclasses.replace(OPERATOR, runtime="containerd://1.7.27", cdi_enabled=False), ENV, "False", "NothingInjects", id="… without CDI"),
        pytest.param(dataclasses.replace(OPERATOR, cdi_enabled=False), ENV, "False", "NothingInjects", id="containerd 2 with CDI off"),
        pytest.param(dataclasses.replace(OPERATOR, runtime="containerd://1.6.36"), ENV, "False", "NothingInjects", id="containerd 1.6 ignores CDI"),
        pytest.param(dataclasses.replace(OPERATOR, runtime="docker://27.0.1"), ENV, "False", "NothingInjects", id="an unknown runtime"),
        pytest.param(dataclasses.replace(OPERATOR, cdi_problem=UNSEEN), ENV, "False", "NothingInjects", id="operator without the component cdi"),
        pytest.param(dataclasses.replace(OPERATOR, runtime=""), ENV, "False", "NothingInjects", id="the Node is not known yet"),
        pytest.param(dataclasses.replace(OPERATOR, driver_requested=False), CRI, "True", "CdiDevices", id="driver root, no driver requested"),
        pytest.param(dataclasses.replace(POD, driver_requested=False), ENV, "Unknown", "NotSeen", id="nothing is visible"),
        pytest.param(dataclasses.replace(DEFAULT, runtime_class=None), ENV, "Unknown", "NotSeen", id="the agent's pod is not known yet"),
        pytest.param(dataclasses.replace(DEFAULT, driver_requested=False), ENV, "Unknown", "NotSeen", id="got a driver without a request"),
        pytest.param(InjectionFacts(runtime="containerd://2.1.4"), ENV, "Unknown", "NotSeen", id="outside of a cluster"),
    ],
)  # fmt: skip
def test_decides_without_a_configured_strategy(
    facts: InjectionFacts, strategies: tuple[str, ...], status: str, reason: str
) -> None:
    choice = decision.decide(facts, ())
    assert (choice.strategies, choice.condition.status, choice.condition.reason) == (strategies, status, reason)
    assert choice.condition.type == contract.CONDITION_DEVICES_INJECTED
    assert bool(choice.refusal) == (status == "False")


@pytest.mark.parametrize(
    ("facts", "named", "status"),
    [
        pytest.param(DEFAULT, ENV, "True", id="environment"),
        pytest.param(DEFAULT, VOLUMES, "True", id="volume mounts are NVIDIA's runtime too"),
        pytest.param(OPERATOR, ENV, "False", id="environment alone on an operator's node"),
        pytest.param(OPERATOR, (*ENV, *CRI), "True", id="… and CDI"),
        pytest.param(OPERATOR, VOLUMES, "False", id="volume mounts on an operator's node"),
        pytest.param(DEFAULT, CRI, "False", id="CDI without specifications"),
        pytest.param(dataclasses.replace(DEFAULT, cdi_problem=""), CRI, "False", id="CDI that the runtime ignores"),
        pytest.param(dataclasses.replace(DEFAULT, cdi_problem=""), ANNOTATIONS, "Unknown", id="… which NVIDIA's runtime may read"),
        pytest.param(dataclasses.replace(OPERATOR, runtime="containerd://1.6.20"), ANNOTATIONS, "False", id="… if it is used"),
        pytest.param(dataclasses.replace(OPERATOR, runtime="containerd://1.7.27"), CRI, "Unknown", id="CDI that may be off"),
        pytest.param(dataclasses.replace(OPERATOR, runtime="cri-o://1.27.1"), CRI, "False", id="an old CRI-O"),
        pytest.param(InjectionFacts(), CRI, "Unknown", id="outside of a cluster"),
    ],
)  # fmt: skip
def test_configured_strategies_are_used_and_assessed(
    facts: InjectionFacts, named: tuple[str, ...], status: str
) -> None:
    choice = decision.decide(facts, named)
    assert choice.strategies == named
    assert choice.condition.status == status
    assert bool(choice.refusal) == (status == "False")


def test_refusal_explains_each_strategy_and_the_remedy() -> None:
    choice = decision.decide(dataclasses.replace(OPERATOR, cdi_problem=UNSEEN), ())
    assert (
        choice.refusal
        == choice.condition.message
        == (
            "containers would get no GPU: envvar: the agent's own container requested a driver from NVIDIA's runtime and got "
            f"none; cdi-cri: {UNSEEN}; make NVIDIA's runtime the node's default, or run the agent with its "
            "RuntimeClass (component runtime-class), or use a runtime that supports CDI and add the component cdi"
        )
    )
    ignored = decision.decide(dataclasses.replace(OPERATOR, runtime="containerd://1.6.36"), CRI).refusal
    assert "cdi-cri: containerd://1.6.36 ignores CDI: it needs containerd 1.7" in ignored


def test_pods_must_name_the_agents_runtime_class() -> None:
    choice = decision.decide(BY_CLASS, ())
    assert choice.needs_class == "nvidia"
    assert "runtimeClassName: nvidia" in choice.condition.message
    assert [choice.allows(name) for name in ("", "gvisor", "nvidia", "nvidia-legacy")] == [False, False, True, True]
    own = decision.decide(dataclasses.replace(BY_CLASS, runtime_class="gpu"), ())
    assert [own.allows(name) for name in ("", "gpu", "nvidia")] == [False, True, True]
    assert decision.decide(DEFAULT, ()).allows("")


def test_a_configured_strategy_is_kept_and_a_working_one_never_refused() -> None:
    seen = itertools.product(
        ("", "containerd://1.6.20", "containerd://1.7.2", "containerd://2.0.0-rc.1", "cri-o://1.30.4", "?://"),
        (None, "", "nvidia"),
        (False, True),
        (False, True),
        (None, "runc", "nvidia"),
        (None, False, True),
        ("", UNSEEN),
    )
    for runtime, own, asked, mounted, default, enabled, cdi_problem in seen:
        facts = InjectionFacts(True, runtime, own, asked, mounted, default, enabled, cdi_problem)
        for named in ((), ENV, CRI, ANNOTATIONS, VOLUMES, (*CRI, *ENV)):
            choice = decision.decide(facts, named)
            assert not named or choice.strategies == named
            assert choice.condition.message
            environment = not named or {*ENV, *VOLUMES} & {*named}
            if environment and (default == "nvidia" or (asked and mounted and own is not None)):
                assert not choice.refusal
            # CDI is never chosen by itself if it might be ignored or the names are undefined.
            if not named and choice.uses_cdi:
                assert not cdi_problem
                assert enabled or runtime.startswith(("containerd://2", "cri-o://1.30"))
