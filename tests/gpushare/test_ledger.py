import pytest

from gpushare import errors, ledger
from gpushare.allocation import PodRef
from tests import builders


def test_use_adds_up_per_gpu() -> None:
    node = ledger.reserve(builders.node(), builders.allocation("a", "GPU-node-a-0", "GPU-node-a-1", request=30))
    node = ledger.reserve(node, builders.allocation("b", "GPU-node-a-1", request=20, memory_gib=4))
    used = ledger.use(node)
    assert [used[gpu.uuid].request_percent for gpu in node.gpus] == [30, 50, 0, 0]
    assert used["GPU-node-a-1"].memory_bytes == 12 * builders.GIB
    assert [holder.id for holder in used["GPU-node-a-1"].holders] == ["a", "b"]


@pytest.mark.parametrize(
    "too_much",
    [
        pytest.param(builders.allocation("b", request=51), id="compute"),
        pytest.param(builders.allocation("b", request=0, memory_gib=73), id="memory"),
        pytest.param(builders.allocation("b", "GPU-of-another-node", request=1), id="unknown-gpu"),
        pytest.param(builders.allocation("a", "GPU-node-a-3", request=1), id="same-id-again"),
    ],
)
def test_reservation_that_breaks_a_rule_is_rejected(too_much: ledger.allocation.Allocation) -> None:
    node = ledger.reserve(builders.node(), builders.allocation("a", request=50))
    with pytest.raises(errors.LedgerError):
        ledger.reserve(node, too_much)


def test_last_percent_and_last_byte_can_be_reserved() -> None:
    node = ledger.reserve(builders.node(), builders.allocation("a", request=99, memory_gib=79))
    node = ledger.reserve(node, builders.allocation("b", request=1, memory_gib=1))
    assert not ledger.violations(node)


def test_confirming_clears_the_expiry_and_keeps_the_first_pod() -> None:
    node = ledger.reserve(builders.node(), builders.allocation("a", pod_name="", reserved_until=60.0))
    first = ledger.confirm(node, {"a": PodRef("default", "trainer-x", "uid-1")})
    assert first.allocations[0].pod == PodRef("default", "trainer-x", "uid-1")
    assert first.allocations[0].reserved_until is None
    assert ledger.confirm(first, {"a": PodRef("default", "thief", "uid-2")}) == first


def test_release_ignores_unknown_ids() -> None:
    node = ledger.reserve(builders.node(), builders.allocation("a", "GPU-node-a-0"))
    node = ledger.reserve(node, builders.allocation("b", "GPU-node-a-1"))
    node = ledger.reserve(node, builders.allocation("c", "GPU-node-a-2"))
    assert [entry.id for entry in ledger.release(node, ["a", "unknown"]).allocations] == ["b", "c"]


def test_violations_are_sentences() -> None:
    node = ledger.reserve(builders.node(), builders.allocation("a", request=80, pod_name="one"))
    spoilt = ledger.dataclasses.replace(
        node,
        allocations=(
            *node.allocations,
            builders.allocation("b", request=30, memory_gib=79, pod_name="two"),
            builders.allocation("c", "GPU-gone", pod_name="three"),
        ),
    )
    assert ledger.violations(spoilt) == [
        "node-a/0 (GPU-node-a-0) is overcommitted: 110% of its compute is held by default/one, default/two",
        "node-a/0 (GPU-node-a-0) is overcommitted: 87Gi of its 80Gi are held by default/one, default/two",
        "node-a no longer has GPU GPU-gone, held by default/three",
    ]


def test_change_without_effect_returns_the_same_object() -> None:
    node = ledger.reserve(builders.node(), builders.allocation("a1", uid="u1"))
    assert ledger.release(node, ["a2"]) is node
    assert ledger.confirm(node, {"a1": PodRef("default", "other", "u2"), "a2": PodRef("default")}) is node
    assert ledger.release(node, ["a1"]).allocations == ()
