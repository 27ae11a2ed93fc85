"""The page about other programs matches the tests."""

from __future__ import annotations

from tests.clients import clients, document


def test_the_page_matches_the_tested_programs() -> None:
    assert document.PAGE.read_text() == document.page(), "run `make docs`"


def test_no_program_is_listed_twice() -> None:
    names = [client.name for client in clients.ALL]
    assert len(names) == len(set(names))
