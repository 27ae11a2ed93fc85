"""etcd is restored to an earlier state while a replica runs that remembers later ones: the ledger follows the pods."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare import contract, ledger
from lab import access, daemon_process, lab_layout
from lab import cluster as labs
from tests import builders
from tests.webhook.conftest import Cluster, apply, prepared
from tests.webhook.replica import until

pytestmark = pytest.mark.apiserver

STOP_SECONDS = 10.0
NOTICE_SECONDS = 60.0  # after a minute without an API server it is asked again within half a minute
LATER_WRITES = 300  # so many that the API server does not get there again while it starts


@pytest.fixture
def directory() -> Iterator[Path]:
    """Return the directory of a separate lab, so that no other test's API server goes back in time."""
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch:
        yield Path(scratch) / "lab"
        labs.down(Path(scratch) / "lab")


@pytest.fixture
def cluster(directory: Path, tmp_path: Path) -> Iterator[Cluster]:
    administrator: access.Access = labs.up(directory, node_count=0, owner=os.getpid())
    apply(administrator)
    yield from prepared(administrator, tmp_path)


class Store:
    """The files of etcd, while it does not run."""

    def __init__(self, directory: Path, copy: Path) -> None:
        self._directory, self._copy = directory, copy
        self._lab = lab_layout.load(directory)

    def save(self) -> None:
        self._stop()
        shutil.copytree(self._lab.etcd / "data", self._copy)
        labs.up(self._directory, node_count=0)

    def restore(self) -> None:
        self._stop()
        shutil.rmtree(self._lab.etcd / "data")
        shutil.copytree(self._copy, self._lab.etcd / "data")
        labs.up(self._directory, node_count=0)

    def _stop(self) -> None:
        daemon_process.stop([("kube-apiserver", STOP_SECONDS)], self._lab.processes)
        daemon_process.stop([("etcd", STOP_SECONDS)], self._lab.processes)


def write(cluster: Cluster, count: int) -> None:
    """Advance the resource version."""
    for number in range(count):
        cluster.administrator.create(f"{cluster.path}/configmaps", {"metadata": {"name": f"later-{number}"}})


def placed(cluster: Cluster) -> set[str]:
    """Return the names of the pods with allocations."""
    pods = (pod["metadata"] for pod in cluster.pods())
    return {pod["name"] for pod in pods if contract.ALLOCATION in pod.get("annotations", {})}


def test_ledger_matches_the_pods_after_an_etcd_restore(cluster: Cluster, directory: Path, tmp_path: Path) -> None:
    store = Store(directory, tmp_path / "backup")
    cluster.start()
    for name in ("kept", "deleted-later"):
        cluster.create(builders.pod(name, request="0.5"))
    until(cluster.is_settled, cluster.explain)
    store.save()
    cluster.delete("deleted-later")
    for number in range(4):
        cluster.create(builders.pod(f"made-later-{number}", request="0.7"))
    until(cluster.is_settled, cluster.explain, seconds=NOTICE_SECONDS)  # the API server has just been restarted

    write(cluster, LATER_WRITES)

    store.restore()
    assert {pod["metadata"]["name"] for pod in cluster.pods()} == {"kept", "deleted-later"}
    made = [cluster.create(builders.pod(f"new-{number}", request="0.7")) for number in range(3)]
    # The replica may not have noticed yet; then they are placed as soon as it has.
    names = {pod["metadata"]["name"] for pod in made}
    until(lambda: names <= placed(cluster) and cluster.is_settled(), cluster.explain, seconds=NOTICE_SECONDS)
    assert ledger.violations(cluster.node()) == []
