"""Each row of docs/coexistence.md is true."""

from __future__ import annotations

import pytest

from gpushare import contract
from tests import builders
from tests.webhook.admission_chain import Chain
from tests.webhook.coexistence import document, software


@pytest.mark.parametrize("product", software.SOFTWARE, ids=lambda product: product.name)
def test_pod_with_other_software(product: software.Software) -> None:
    chain = Chain(software.nodes())
    changes = {"before": [product.change]} if product.before else {"behind": [product.change]}
    stored = chain.create(builders.pod(request="0.5"), **changes)
    assert stored.answers[-1].outcome == product.outcome
    assert stored.sharers == [product.sharer]
    assert any(f'share is for container "{product.sharer}"' in warning for warning in stored.answers[0].warnings) is (
        product.sharer != "main"
    )
    holders = [entry.id for entries in chain.allocations().values() for entry in entries]
    assert holders == ([] if product.outcome == "gated" else [stored.annotations[contract.ALLOCATION]])
    if (pool := (stored.pod["spec"].get("nodeSelector") or {}).get("pool")) is not None:
        assert (stored.annotations[contract.NODE], pool) == ("node-b", "serve")


def test_page_matches_the_table() -> None:
    assert document.PAGE.read_text() == document.page(), "run make docs"
