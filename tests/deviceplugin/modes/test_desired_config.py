"""Warnings about a configuration that is applied to GPUs, and what ends the one of borrowed GPUs."""

from __future__ import annotations

import pytest

from deviceplugin import agent_settings
from deviceplugin.modes import desired_config
from gpushare.config import config_choice
from gpushare.config.config_choice import BORROWED, ActiveConfig
from gpushare.modes.hardware_gpu import HardwareGpu

GPUS = [HardwareGpu("GPU-a", 0)]


def warnings(flags: str, *arguments: str, environment: dict[str, str] | None = None) -> tuple[str, ...]:
    options = agent_settings.ModeOptions(arguments=arguments, environment=environment or {})
    return desired_config.resolve(ActiveConfig("x", f"version: v1\nflags: {{{flags}}}\n"), GPUS, options).warnings


def test_a_flag_that_only_the_command_line_can_set_is_warned_about() -> None:
    (warning,) = warnings("mpsRoot: /run/nvidia/mps")
    assert warning == "flags.mpsRoot /run/nvidia/mps has no effect: the agent takes it from --mps-root when it starts"
    (warning,) = warnings("failOnInitError: false")
    assert "from --fail-on-init-error" in warning


@pytest.mark.parametrize(
    ("flags", "arguments", "environment"),
    [
        ("failOnInitError: true", (), {}),
        ("mpsRoot: ''", (), {}),
        ("mpsRoot: /mps", ("--mps-root=/mps",), {}),
        ("failOnInitError: false", (), {"FAIL_ON_INIT_ERROR": "false"}),
    ],
)
def test_a_flag_with_the_value_in_effect_is_not_warned_about(
    flags: str, arguments: tuple[str, ...], environment: dict[str, str]
) -> None:
    assert warnings(flags, *arguments, environment=environment) == ()


@pytest.mark.parametrize("default", ["", "default", "exclusive", "only"])
@pytest.mark.parametrize("entries", [{}, {"default": "version: v1\n"}, {"only": config_choice.BUILT_IN.text}])
def test_no_default_hands_borrowed_gpus_to_shares(default: str, entries: dict[str, str]) -> None:
    options = agent_settings.ModeOptions(default=default)
    decision = desired_config.choose(BORROWED, entries, label=None, options=options)
    assert decision == config_choice.Decision(BORROWED)


def test_a_labeled_configuration_waits_until_no_container_has_a_gpu_of_the_other_plugin() -> None:
    entries, options = {"mine": "version: v1\n"}, agent_settings.ModeOptions()

    def choose(foreign: str) -> config_choice.Decision:
        return desired_config.choose(BORROWED, entries, label="mine", options=options, foreign=foreign)

    waiting = choose("another device plugin has given GPU-a to containers")
    assert waiting.in_force == BORROWED
    assert waiting.problem == "configuration mine waits: another device plugin has given GPU-a to containers"
    assert choose("") == config_choice.Decision(ActiveConfig("mine", entries["mine"]))
