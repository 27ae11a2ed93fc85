"""A user with a namespace for each test, in the lab with gpushare."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab import access, lab_layout
from tests.e2e.observation import Observer, Reviews


@pytest.fixture
def user(installed: lab_layout.Layout, lab: access.Access) -> Iterator[Observer]:
    """A user with a separate namespace."""
    with lab.namespace("e2e") as namespace:
        yield Observer(lab, namespace)


@pytest.fixture
def reviews(installed: lab_layout.Layout, lab: access.Access) -> Reviews:
    """The webhook's count of its reviews."""
    return Reviews(lab)
