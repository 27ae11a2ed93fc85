"""A destroyed pool keeps its memory, and its charge, until the GPU has freed it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.deviceplugin.audit.conftest import AuditNode
from tests.deviceplugin.audit.programs import destroying

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("end", ["free_and_destroy", "destroy_and_free"])
def test_destroyed_pool_stays_charged_until_its_stream_frees_it(start: Callable[..., AuditNode], end: str) -> None:
    node = start()
    client = node.client("trainer", program=destroying.answers)
    node.audit(3)
    most = int(client("room()"))
    for _ in range(3):
        assert client(f"[held.update(pool=pool(4)), hold(), {end}(held.pop('pool'))][1]") == "None"
        assert int(client("room()")) == most - 4
        client("let_on()")
        node.audit(2)
        assert int(client("room()")) == most
