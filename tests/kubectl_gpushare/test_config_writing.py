"""`config set` and `config label` on a real API server: their plans, questions and writes."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.config import config_choice
from tests.config.installation import apply
from tests.kubectl_gpushare.conftest import SECONDS, Kubectl

pytestmark = pytest.mark.apiserver

EXCLUSIVE = "version: v1\n"
CONFIGURATIONS = "/api/v1/namespaces/gpushare-system/configmaps/gpushare-config"
NODE = "/api/v1/nodes/gpu-1"


@pytest.fixture
def cluster(kubectl: Kubectl, namespace: str) -> Iterator[Kubectl]:
    """Create the sample's nodes, with no ConfigMap before and after."""
    apply(kubectl.access, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpushare-system"}}])
    yield kubectl
    kubectl.access.patch(NODE, {"metadata": {"labels": {"gpushare.io/config": None}}})
    kubectl.access.delete(CONFIGURATIONS)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "node.yaml"
    path.write_text(EXCLUSIVE)
    return path


def stored(kubectl: Kubectl) -> dict[str, str] | None:
    found = kubectl.access.find(CONFIGURATIONS)
    return dict(found["data"]) if found else None


def label_of(kubectl: Kubectl) -> str | None:
    label: str | None = kubectl.access.read(NODE)["metadata"]["labels"].get("gpushare.io/config")
    return label


def change(kubectl: Kubectl, *arguments: str | Path) -> tuple[int, str, str]:
    ended = kubectl("gpushare", "config", *map(str, arguments))
    return ended.code, ended.out, ended.err


def test_set_shows_changes_and_writes_only_after_consent(cluster: Kubectl, file: Path) -> None:
    code, out, err = change(cluster, "set", "default", "-f", file)
    assert code == 1
    assert "gpu-1 would follow default:\n  GPU 0 (" in out
    assert "fractional → exclusive, nvidia.com/gpu, once these pods have ended: " in out
    assert err.startswith("error: nothing was changed: add --yes to write the entry default of the ConfigMap ")
    assert stored(cluster) is None

    code, out, err = change(cluster, "set", "default", "-f", file, "--dry-run")
    assert (code, err) == (0, "")
    assert out.endswith("configmap/gpushare-config: entry default created (dry run)\n")
    assert stored(cluster) is None

    code, out, _ = change(cluster, "set", "default", "-f", file, "--yes")
    assert code == 0
    assert "entry default created; each GPU changes as soon as no pod uses it: kubectl gpushare config show\n" in out
    assert stored(cluster) == {"default": EXCLUSIVE}
    managers = cluster.access.read(CONFIGURATIONS)["metadata"]["managedFields"]
    assert [entry["manager"] for entry in managers] == ["kubectl-gpushare"]
    assert change(cluster, "set", "default", "-f", file)[1].endswith("unchanged: default is that already\n")


@pytest.mark.parametrize("there", [False, True], ids=["no ConfigMap", "one without entries"])
def test_first_entry_also_writes_the_built_in_default(cluster: Kubectl, file: Path, there: bool) -> None:
    if there:
        cluster.access.create(CONFIGURATIONS.rpartition("/")[0], {"metadata": {"name": "gpushare-config"}})
    code, out, _ = change(cluster, "set", "whole", "-f", file, "--yes")
    assert code == 0
    assert "no node follows whole, so no GPU changes\n" in out
    assert "a node follows it once it is labelled: kubectl gpushare config label NODE whole\n" in out
    assert stored(cluster) == {"default": config_choice.BUILT_IN.text, "whole": EXCLUSIVE}


def test_label_shows_the_change_before_writing(cluster: Kubectl, file: Path) -> None:
    change(cluster, "set", "whole", "-f", file, "--yes")
    code, out, err = change(cluster, "label", "gpu-1", "whole")
    assert code == 1
    assert "fractional → exclusive" in out
    assert err == (
        "error: nothing was changed: add --yes to set the label gpushare.io/config=whole of the node gpu-1, as there "
        "is no terminal to ask on\n"
    )
    code, out, err = change(cluster, "label", "gpu-1", "whole", "--yes")
    assert (code, err) == (0, "")
    assert out.endswith("no pod uses it: kubectl gpushare config show gpu-1\n")
    assert label_of(cluster) == "whole"
    assert change(cluster, "label", "gpu-1", "whole")[1] == (
        "node/gpu-1 unchanged: it has the label gpushare.io/config=whole\n"
    )
    code, out, _ = change(cluster, "label", "gpu-1", "--remove", "--yes")
    assert code == 0
    assert "gpu-1 would follow default:\n" in out
    assert label_of(cluster) is None
    assert change(cluster, "label", "gpu-1", "exclusive", "--dry-run")[0] == 0  # which is built in


def test_set_suggests_no_label_if_its_nodes_reject_the_entry(cluster: Kubectl, file: Path) -> None:
    change(cluster, "set", "whole", "-f", file, "--yes")
    change(cluster, "label", "gpu-1", "whole", "--yes")
    file.write_text("version: v1\nmig:\n- devices: [0]\n  mig-enabled: true\n  mig-devices: {9g.99gb: 1}\n")
    code, out, err = change(cluster, "set", "whole", "-f", file, "--yes")
    assert code == 0
    assert "gpu-1 would stay as it is: " in out + err
    assert out.endswith("entry whole changed; nodes that follow it stay as they are: kubectl gpushare config show\n")


def test_invalid_change_is_rejected_before_writing(cluster: Kubectl, file: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("version: v1\nsharing: {mps: {}}\n")
    code, _, err = change(cluster, "set", "mps", "-f", bad, "--yes")
    assert code == 1
    assert "no resources specified" in err
    assert "nothing was changed" in err
    code, _, err = change(cluster, "label", "gpu-1", "nope", "--yes")
    assert code == 1
    assert "add it with kubectl gpushare config set nope -f FILE; nothing was changed\n" in err
    assert 'nodes "nope" not found' in change(cluster, "label", "nope", "default", "--yes")[2]
    assert 'error: NAME "a b" cannot be the value of a label' in change(cluster, "set", "a b", "-f", file)[2]
    assert "give the NAME of a configuration, or --remove" in change(cluster, "label", "gpu-1")[2]
    assert stored(cluster) is None


def test_user_without_rights_gets_one_sentence(cluster: Kubectl, file: Path) -> None:
    code, _, err = change(cluster, "set", "default", "-f", file, "--yes", "--as=jane")
    assert code == 1
    assert err.startswith('error: user "jane" may not get configmaps')
    code, _, err = change(cluster, "label", "gpu-1", "exclusive", "--yes", "--as=jane")
    assert code == 1
    assert err.startswith('error: user "jane" may not get nodes')


def test_concurrent_change_is_a_conflict(cluster: Kubectl, file: Path) -> None:
    change(cluster, "set", "default", "-f", file, "--yes")
    answer = _asked(cluster, "set", "mine", "-f", str(file), before_answer=lambda: cluster.access.patch(
        CONFIGURATIONS, {"data": {"other": "version: v1"}}
    ))  # fmt: skip
    assert "Write the entry mine of the ConfigMap gpushare-system/gpushare-config? [y/N]" in answer
    assert "it was changed at the same time" in answer
    assert set(stored(cluster) or ()) == {"default", "other"}
    assert "entry mine created" in _asked(cluster, "set", "mine", "-f", str(file))
    assert set(stored(cluster) or ()) == {"default", "mine", "other"}


def _asked(kubectl: Kubectl, *arguments: str, before_answer=lambda: None) -> str:  # type: ignore[no-untyped-def]
    """Return the output of `config` on a terminal after answering its question with yes."""
    master, slave = pty.openpty()
    command = ["kubectl", "gpushare", "config", *arguments]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=kubectl.environment)
    os.close(slave)
    said, answered, until = b"", False, time.monotonic() + SECONDS
    try:
        while select.select([master], [], [], max(0.0, until - time.monotonic()))[0]:
            try:
                part = os.read(master, 1 << 16)
            except OSError:  # the other end is closed
                break
            said += part
            if b"[y/N]" in said and not answered:
                before_answer()
                os.write(master, b"y\n")
                answered = True
    finally:
        os.close(master)
        process.wait(SECONDS)
    return said.decode()


def test_unknown_mig_profile_can_be_written(cluster: Kubectl, tmp_path: Path) -> None:
    path = tmp_path / "newer.yaml"
    path.write_text("mig: [{devices: all, mig-enabled: true, mig-devices: {9g.90gb: 1}}]\n")
    code, _, err = change(cluster, "set", "newer", "-f", path, "--yes")
    assert code == 0
    assert "warning: newer: mig[0]: no known GPU has the MIG profile 9g.90gb: did you mean " in err


def test_set_warns_about_an_entry_declared_by_helm(cluster: Kubectl, file: Path) -> None:
    change(cluster, "set", "default", "-f", file, "--yes")
    declared = {"gpushare.io/written-by-helm": '{"mine":"0"}'}
    cluster.access.patch(CONFIGURATIONS, {"metadata": {"annotations": declared}})
    code, _, err = change(cluster, "set", "mine", "-f", file, "--dry-run")
    assert code == 0
    assert "Helm declares mine: helm upgrade fails until config.data.mine is the same text" in err
    assert change(cluster, "set", "other", "-f", file, "--dry-run")[2] == ""
