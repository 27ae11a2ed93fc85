"""Warnings about a configuration that is applied to GPUs."""

from __future__ import annotations

import pytest

from deviceplugin import agent_settings
from deviceplugin.modes import desired_config
from gpushare.config.config_choice import ActiveConfig
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
