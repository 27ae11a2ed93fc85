"""gpushare in the lab, installed once for all end-to-end tests, and a user with a namespace for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab import access, gpushare, lab_layout
from tests.e2e.observation import Observer, Reviews


@pytest.fixture(scope="session")
def installed(lab: access.Access) -> lab_layout.Layout:
    """The lab with gpushare running in it."""
    where = lab_layout.load(lab.kubeconfig.parents[1])
    gpushare.install(where, lab)
    return where


@pytest.fixture
def user(installed: lab_layout.Layout, lab: access.Access) -> Iterator[Observer]:
    """A user with a separate namespace."""
    with lab.namespace("e2e") as namespace:
        yield Observer(lab, namespace)


@pytest.fixture
def reviews(installed: lab_layout.Layout, lab: access.Access) -> Reviews:
    """The webhook's count of its reviews."""
    return Reviews(lab)
