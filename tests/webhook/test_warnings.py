"""A gated pod gets a warning, unless it will be placed as soon as it exists."""

from __future__ import annotations

from gpushare import contract
from tests import builders
from tests.webhook.admission_chain import Chain, node


def test_a_pod_that_does_not_fit_gets_a_warning() -> None:
    gated = Chain([node("node-a")]).create(builders.pod(request="0.5", memory="200Gi"))
    reason = gated.annotations[contract.REASON]
    assert gated.answers[0].warnings == (f"waits for a GPU: {reason}",)


def test_pod_that_is_placed_once_stored_gets_no_warning() -> None:
    chain = Chain([node("node-a"), node("node-b")])
    for name in ("first", "second"):
        assert chain.create(builders.pod(name, request="1")).gates == []
    gated = chain.create(builders.pod("third", request="0.1"))
    assert gated.gates == [contract.SCHEDULING_GATE]
    assert gated.annotations[contract.REASON] == (
        "2 GPUs are reserved for pods of this namespace that do not exist yet, so this pod is placed only once it exists"
    )
    assert gated.answers[0].warnings == ()
