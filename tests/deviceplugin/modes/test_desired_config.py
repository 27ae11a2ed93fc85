"""A configuration, understood for the GPUs that there are."""

from __future__ import annotations

import pytest

from deviceplugin.modes import desired_config
from gpushare.config.config_choice import ActiveConfig
from gpushare.modes.hardware_gpu import HardwareGpu

GPUS = [HardwareGpu("GPU-a", 0)]


def warnings(flags: str, *arguments: str, environment: dict[str, str] | None = None) -> tuple[str, ...]:
    options = desired_config.ModeOptions(arguments=arguments, environment=environment or {})
    return desired_config.understood(ActiveConfig("x", f"version: v1\nflags: {{{flags}}}\n"), GPUS, options).warnings


def test_what_is_fixed_at_the_start_cannot_be_said_by_a_file_which_is_told() -> None:
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
def test_what_says_the_same_is_nothing_to_tell(
    flags: str, arguments: tuple[str, ...], environment: dict[str, str]
) -> None:
    assert warnings(flags, *arguments, environment=environment) == ()
