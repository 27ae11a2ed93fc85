"""install.sh, run as a user runs it, against an API server of its own."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import access, cluster
from tests.config import manifests


def install(*flags: str, path: str = "", kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PATH": f"{path}{os.pathsep if path else ''}{os.environ['PATH']}",
        "KUBECONFIG": str(kubeconfig or "/nonexistent"),
    }
    command = ["./install.sh", *flags]
    return subprocess.run(
        command, cwd=manifests.REPOSITORY, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_help_names_every_flag() -> None:
    done = install("--help")
    assert done.returncode == 0
    source = (manifests.REPOSITORY / "install.sh").read_text()
    for flag in ("--dry-run", "--uninstall", "--local", "--prerequisites", "--help"):
        assert f"  {flag} " in done.stdout
        assert f"  {flag}" in source.partition("\ncase ")[2]


def test_an_unknown_flag_is_refused() -> None:
    done = install("--remove")
    assert done.returncode == 1
    assert "error: --remove is not a flag of install.sh" in done.stderr


def test_nothing_is_missing_where_the_tests_run() -> None:
    done = install("--prerequisites")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture(scope="module")
def own() -> Iterator[access.Access]:
    """An API server of its own: to uninstall is to take away what other tests have installed."""
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch:
        directory = Path(scratch) / "lab"
        try:
            yield cluster.up(directory, node_count=0, owner=os.getpid())
        finally:
            cluster.down(directory)


def ours(own: access.Access) -> list[str]:
    """What is there of gpushare."""
    kinds = "crd,validatingadmissionpolicy,validatingadmissionpolicybinding,mutatingwebhookconfiguration,clusterrole"
    everywhere = own.kubectl("get", f"{kinds},clusterrolebinding", "--output=name").split()
    workloads = own.kubectl("get", "deploy,ds,secret,sa", "--namespace=gpushare-system", "--output=name").split()
    return [name for name in (*everywhere, *workloads) if "gpushare" in name]


@pytest.mark.apiserver
def test_it_says_what_it_would_do_refuses_without_images_and_takes_everything_away(own: access.Access) -> None:
    path = str(own.kubectl_program.parent)

    told = install("--dry-run", path=path, kubeconfig=own.kubeconfig)
    assert told.returncode == 0, told.stderr
    assert "customresourcedefinition.apiextensions.k8s.io/gpunodes.gpushare.io created (dry run)" in told.stdout

    refused = install(path=path, kubeconfig=own.kubeconfig)
    assert refused.returncode == 1
    assert "error: no images of gpushare are published yet" in refused.stderr
    assert ours(own) == []

    own.kubectl("apply", f"--kustomize={manifests.CONFIG / 'default'}")
    assert len(ours(own)) > 10
    told = install("--dry-run", path=path, kubeconfig=own.kubeconfig)
    assert told.returncode == 0, told.stderr
    assert "(server dry run)" in told.stdout

    removed = install("--uninstall", path=path, kubeconfig=own.kubeconfig)
    assert removed.returncode == 0, removed.stderr
    assert ours(own) == []
    again = install("--uninstall", path=path, kubeconfig=own.kubeconfig)
    assert again.returncode == 0, again.stderr


@pytest.mark.apiserver
def test_without_a_cluster_it_says_so(own: access.Access) -> None:
    done = install(path=str(own.kubectl_program.parent))
    assert done.returncode == 1
    assert "error: no cluster answers in the context 'none'" in done.stderr
