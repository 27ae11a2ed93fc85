from __future__ import annotations

from typing import Any

import pytest

from kubectl_gpushare.views import as_kubectl
from tests.kubectl_gpushare import sample


def with_status(**status: Any) -> dict[str, Any]:
    return {**sample.pod("ml/trainer"), "status": status}


@pytest.mark.parametrize(
    ("pod", "state"),
    [
        ({}, "Pending"),
        (sample.pod("ml/a"), "Running"),
        (sample.gated("ml/a"), "Gated"),
        (with_status(phase="Failed", reason="Evicted"), "Evicted"),
        (with_status(phase="Running", containerStatuses=[{"state": {"running": {}}}]), "Running"),
        (
            with_status(phase="Running", containerStatuses=[{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]),
            "CrashLoopBackOff",
        ),
        (
            with_status(phase="Pending", initContainerStatuses=[{"state": {"waiting": {"reason": "ErrImagePull"}}}]),
            "ErrImagePull",
        ),
        (
            with_status(
                phase="Running", containerStatuses=[{"state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]
            ),
            "Error",
        ),
        (
            with_status(
                phase="Running",
                initContainerStatuses=[{"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}],
                containerStatuses=[
                    {"state": {"running": {}}},
                    {"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}},
                ],
            ),
            "OOMKilled",
        ),
        (
            with_status(
                phase="Running",
                containerStatuses=[
                    {"state": {"running": {}}},
                    {"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
                ],
            ),
            "Running",
        ),
        (with_status(phase="Failed", containerStatuses=[{"state": {"terminated": {"exitCode": 3}}}]), "ExitCode:3"),
        ({"metadata": {"deletionTimestamp": "2026-03-01T00:00:00Z"}, "status": {"phase": "Running"}}, "Terminating"),
    ],
)
def test_a_pod_s_state_is_a_word(pod: dict[str, Any], state: str) -> None:
    assert as_kubectl.pod_state(pod) == state
