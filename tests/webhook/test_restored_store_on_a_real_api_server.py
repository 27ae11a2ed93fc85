"""etcd is put back to what it was: the remedy of docs/operations.md leaves a ledger that is true to the pods there are."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare import contract, ledger
from lab import access, layout, process
from lab import cluster as labs
from tests import builders
from tests.webhook.conftest import Cluster, _cluster, _installed
from tests.webhook.replica import until

pytestmark = pytest.mark.apiserver

STOP_SECONDS = 10.0


@pytest.fixture
def directory() -> Iterator[Path]:
    """Of a lab of its own: nobody else's API server goes back in time."""
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch:
        yield Path(scratch) / "lab"
        labs.down(Path(scratch) / "lab")


@pytest.fixture
def cluster(directory: Path, tmp_path: Path) -> Iterator[Cluster]:
    administrator: access.Access = labs.up(directory, node_count=0, owner=os.getpid())
    for installed in _installed(administrator):
        yield from _cluster(installed, tmp_path)


class Store:
    """The files of etcd, while nobody serves from them."""

    def __init__(self, directory: Path, copy: Path) -> None:
        self._directory, self._copy = directory, copy
        self._lab = layout.load(directory)

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
        process.stop([("kube-apiserver", STOP_SECONDS)], self._lab.processes)
        process.stop([("etcd", STOP_SECONDS)], self._lab.processes)


def test_the_ledger_is_that_of_the_pods_after_a_restore(cluster: Cluster, directory: Path, tmp_path: Path) -> None:
    store = Store(directory, tmp_path / "backup")
    cluster.start()
    for name in ("kept", "deleted-later"):
        cluster.create(builders.pod(name, request="0.5"))
    until(cluster.is_settled, cluster.explain)
    store.save()
    cluster.delete("deleted-later")
    for number in range(4):
        cluster.create(builders.pod(f"made-later-{number}", request="0.7"))
    until(cluster.is_settled, cluster.explain)

    for one in cluster.replicas:
        one.kill()
    store.restore()
    cluster.front.ports.clear()
    cluster.start()
    until(cluster.is_settled, cluster.explain)
    assert {one["metadata"]["name"] for one in cluster.pods()} == {"kept", "deleted-later"}
    made = [cluster.create(builders.pod(f"new-{number}", request="0.7")) for number in range(3)]
    assert all(contract.ALLOCATION in one["metadata"]["annotations"] for one in made)
    until(cluster.is_settled, cluster.explain)
    assert ledger.violations(cluster.node()) == []
