"""Cutting as a part of setting up: what a pod has is never destroyed, be it computed on or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deviceplugin import simulated
from tests.deviceplugin.modes.programs import held_devices

pytestmark = pytest.mark.slow


def test_a_device_that_a_pod_has_is_left_though_nobody_computes_on_it(gpus: Path) -> None:
    done = simulated.run(gpus, held_devices.cuts_beside_a_held_device)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused ")
    assert done.stdout.count("refused") == 1
