"""The clusters that tests run on: the lab's, or your own.

On the lab's, gpushare's programs must not make any call that they have no right to. This is checked when a cluster
ends.

With GPUSHARE_TEST_CLUSTER=1 the cluster in $KUBECONFIG is used instead of a lab. Tests create namespaces in it, and
some install cluster-wide objects, so use a disposable cluster.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy
import pytest

from config.images import contents
from lab import access, api_audit, cluster, gpushare, lab_layout
from tests import forked, rights, work_units
from tests.retryable import pytest_addoption, pytest_configure  # noqa: F401
from tests.work_units import pytest_collection_modifyitems, pytest_runtest_protocol  # noqa: F401

# A shell starts programs in the background with SIGINT ignored, which those that tests interrupt would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Servers of a test's cluster mostly idle, so their Go runtimes collect garbage less often, and start no threads that look
# for work: an API server starts in 1.4 s of a core instead of 2.1, and idles at 0.9 % of one instead of 1.3 %.
for name, value in {"GOGC": "400", "GOMAXPROCS": "1"}.items():
    os.environ.setdefault(name, value)

# Hypothesis sets no deadlines. Random inputs are new on every run of a developer, and the same on every run of
# continuous integration: an unrelated failure must not block a change.
hypothesis.settings.register_profile(
    "gpushare",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
hypothesis.settings.load_profile("gpushare")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what was imported and collected, which stays to the end, out of the garbage collector's passes."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)  # the hook exists only with xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> work_units.WorkUnits | None:
    return work_units.WorkUnits(config, log) if config.getoption("dist") == "loadfile" else None


_LEFT_OUT_OF_NUMPY = [
    match[1]
    for pattern in contents.WHEEL_FILES_LEFT_OUT
    if (match := re.fullmatch(r"numpy/([a-z]\w*)/\*", pattern)) and match[1] != "random"  # hypothesis seeds it
]
_WITH_ALL_OF_NUMPY = {"bench", "frameworks", "gpu"}  # folders with tests of programs that are not in an image


@pytest.fixture(autouse=True, scope="module")
def numpy_of_the_images(request: pytest.FixtureRequest) -> Iterator[None]:
    """Remove the modules that the images omit from numpy in this process too, because numpy imports some lazily."""
    with pytest.MonkeyPatch.context() as patched:
        if request.path.relative_to(Path(__file__).parent).parts[0] not in _WITH_ALL_OF_NUMPY:
            for name in _LEFT_OUT_OF_NUMPY:
                patched.delattr(numpy, name, raising=False)
                patched.setitem(sys.modules, f"numpy.{name}", None)
        yield


@pytest.fixture(autouse=True, scope="session")
def fork_servers() -> Iterator[None]:
    """Fork the project's programs where a test can do with that."""
    with forked.allowed():
        yield


@pytest.fixture(scope="session")
def api_server() -> Iterator[access.Access]:
    """A real API server with etcd and without controllers: pods stay as admission left them."""
    yield from _cluster(node_count=0)


@pytest.fixture(scope="session")
def scheduler() -> Iterator[access.Access]:
    """A real API server and scheduler only: pods are bound to nodes that tests create, and never run."""
    if os.environ.get("GPUSHARE_TEST_CLUSTER") == "1":
        pytest.skip("nodes that are made up do not last in a cluster with controllers")
    yield from _cluster(node_count=0, scheduler=True)


@pytest.fixture(scope="session")
def lab() -> Iterator[access.Access]:
    """A whole cluster with one node on which pods run."""
    yield from _cluster(node_count=1)


@pytest.fixture(scope="session")
def installed(lab: access.Access) -> lab_layout.Layout:
    """The lab with gpushare running in it."""
    where = lab_layout.load(lab.kubeconfig.parents[1])
    gpushare.install(where, lab)
    return where


def _cluster(node_count: int, *, scheduler: bool = False) -> Iterator[access.Access]:
    # pytest's directory has a path too long for sockets.
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch:
        if os.environ.get("GPUSHARE_TEST_CLUSTER") == "1":
            yield access.from_kubeconfig(Path(os.environ["KUBECONFIG"]), Path(scratch))
            return
        directory = Path(scratch) / "lab"
        try:
            yield cluster.up(directory, node_count=node_count, scheduler=scheduler, owner=os.getpid())
            beyond = rights.beyond(api_audit.calls(lab_layout.load(directory).audit_log))
            assert not beyond, f"gpushare asked for what it has no right to: {beyond}"
        finally:
            cluster.down(directory)
