"""The Events of a GPU are those that name it, not all Events of its node."""

from __future__ import annotations

import pytest

from kubectl_gpushare.views import as_kubectl
from tests import builders


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("GPU 1 (GPU-node-a-1) is unhealthy: XID 79", True),
        ("no GPU fits 0.5 GPU: nearest: node-a/1 has 20Gi free", True),
        ("GPU-node-a-1 was set aside", True),
        ("GPU 2 (GPU-node-a-2) is unhealthy: XID 79", False),
        ("GPU 10 (GPU-node-a-x) is unhealthy: XID 79", False),
        ("nearest: node-a/10 has 20Gi free", False),
        ("nearest: other-node-a/1 has 20Gi free", False),
        ("the reservation a1 for ml/new expired: its pod never appeared", False),
    ],
)
def test_event_belongs_to_the_gpu_that_it_names(message: str, named: bool) -> None:
    gpu = builders.node("node-a").gpus[1]
    for key in ("message", "note"):
        assert bool(as_kubectl.events_of_gpu([{key: message}], gpu, "node-a/1")) is named
    assert as_kubectl.events_of_gpu(None, gpu, "node-a/1") is None
