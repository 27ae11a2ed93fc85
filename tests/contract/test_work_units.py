"""The tests of one lab go to one worker, in an order in which none waits for what an earlier one left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import work_units

FILES = {
    "tests/e2e/test_rights.py::test_every_right_is_used": work_units.LAB,
    "tests/deviceplugin/test_lab_audit.py::test_it": work_units.LAB,
    "tests/e2e/test_reinstallations.py::test_it[a::b]": "tests/e2e/test_reinstallations.py",
    "tests/webhook/test_gangs_on_a_real_api_server.py::test_it": "tests/webhook/test_gangs_on_a_real_api_server.py",
}


@pytest.mark.parametrize("test", FILES)
def test_a_test_of_the_shared_lab_is_in_its_unit(test: str) -> None:
    assert work_units.unit(test) == FILES[test]


def test_no_other_file_uses_the_shared_lab(request: pytest.FixtureRequest) -> None:
    """Of those that this run has collected; `make test` collects all."""
    elsewhere = {
        item.nodeid
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and "lab" in item.fixturenames
        and work_units.unit(str(item.path.relative_to(Path(work_units.ROOT)))) != work_units.LAB
    }
    assert elsewhere == set()
