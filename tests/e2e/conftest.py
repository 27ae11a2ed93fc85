"""A user with a namespace for each test, in the lab with gpushare."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab import access, lab_layout
from tests.e2e.observation import Observer, Reviews


@pytest.fixture
def user(installed: lab_layout.Layout, lab: access.Access) -> Iterator[Observer]:
    """A user with a separate namespace. Its pods end by force, and no share stays."""
    with lab.namespace("e2e") as namespace:
        made = Observer(lab, namespace)
        yield made
    made.ledger_is_empty()


@pytest.fixture
def reviews(installed: lab_layout.Layout, lab: access.Access) -> Reviews:
    """The webhook's count of its reviews."""
    return Reviews(lab)
