"""The tests of one lab go to one worker, in an order in which none waits for what an earlier one left, and the lab ends
with them.
"""

from __future__ import annotations

import subprocess
import sys
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


CONFTEST = """
from pathlib import Path
import pytest
from tests.work_units import pytest_collection_modifyitems, pytest_runtest_protocol

LOG = Path(__file__).parent / "log"

@pytest.fixture(scope="session")
def server():
    LOG.open("a").write("start ")
    yield
    LOG.open("a").write("end ")

@pytest.fixture(autouse=True)
def named(request):
    LOG.open("a").write(f"{request.node.name} ")
"""
SERVED = """
import pytest
@pytest.mark.{marker}
def test_{name}(server): pass
"""


@pytest.mark.slow
def test_clusters_end_after_the_last_test_that_uses_them(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_a.py").write_text("def test_short(): pass\n")
    for name, marker in (("b", "apiserver"), ("c", "apiserver"), ("d", "lab"), ("e", "slow")):
        (tmp_path / f"test_{name}.py").write_text(SERVED.format(marker=marker, name=name))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", tmp_path]
    done = subprocess.run(command, cwd=work_units.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = (tmp_path / "log").read_text()
    assert steps == "start test_d end start test_b test_c end start test_e test_short end "
