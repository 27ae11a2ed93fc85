"""Test file of a small project: its fixture fails at the end of the first run."""

import pathlib
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def whole() -> Iterator[None]:
    yield
    ran_before = pathlib.Path("ended-before")
    if not ran_before.exists():
        ran_before.touch()
        raise AssertionError("some test left something behind")


@pytest.mark.usefixtures("whole")
def test_ends_badly_once() -> None:
    pass
