"""The prints, questions and saved files of `install.sh --uninstall`."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from gpushare import contract
from lab import access
from tests.config import manifests
from tests.config.installation import CRD, ours

GPUNODE = manifests.REPOSITORY / "tests/config/gpunode.yaml"


def on_terminal(own: access.Access, answer: str, cwd: Path, *flags: str) -> tuple[int, str]:
    """Run install.sh on a terminal, answer its question, and return its output."""
    master, slave = pty.openpty()
    environment = {**os.environ, **access.KUBECTL_ENVIRONMENT, "KUBECONFIG": str(own.kubeconfig)}
    environment["PATH"] = f"{own.kubectl_program.parent}{os.pathsep}{os.environ['PATH']}"
    command = [str(manifests.REPOSITORY / "install.sh"), *flags]
    process = subprocess.Popen(command, cwd=cwd, env=environment, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    said, answered, until = b"", False, time.monotonic() + 120
    try:
        while select.select([master], [], [], max(0.0, until - time.monotonic()))[0]:
            try:
                said += os.read(master, 1 << 16)
            except OSError:  # its last process has exited
                break
            if b"[y/N] " in said and not answered:
                os.write(master, answer.encode())
                answered = True
    finally:
        os.close(master)
        code = process.wait(120)
    return code, said.decode().replace("\r\n", "\n")


@pytest.mark.apiserver
@pytest.mark.usefixtures("run")  # which removes everything afterwards
def test_uninstalling_asks_for_confirmation_on_a_terminal(own: access.Access, tmp_path: Path) -> None:
    components = [manifests.CONFIG / "components/defrag"]
    with own.namespace("holders") as namespace:
        pod = f"/api/v1/namespaces/{namespace}/pods/trainer"
        labels = {"gpushare.io/share": "true"}
        spec = {"containers": [{"name": "main", "image": "x"}]}
        own.create(pod.rpartition("/")[0], {"metadata": {"name": "trainer", "labels": labels}, "spec": spec})
        with manifests.together(manifests.CONFIG / "default", components=components) as folder:
            own.kubectl("apply", "--server-side", f"--kustomize={folder}")
        own.wait_until_established("gpunodes.gpushare.io")
        own.create(contract.GPUNODE_PATH, yaml.safe_load(GPUNODE.read_text()))
        named = f"Pods that have a share, or wait for one:\n  {namespace} +trainer "
        code, said = on_terminal(own, "n\n", tmp_path, "--uninstall", "--delete-ledger")
        assert code == 1
        assert "the ledger, with the cordons of GPUs: the CRD gpunodes.gpushare.io and 1 GPUNodes\n" in said
        assert re.search(named, said)
        assert said.endswith("error: nothing was changed\n")
        assert any(path.endswith("/cronjobs/gpushare-defrag") for path in ours(own))
        assert len(ours(own)) > 10
        code, said = on_terminal(own, "y\n", tmp_path, "--uninstall")
        assert code == 0
        assert re.search(rf"{named}[^\0]*\[y/N\][^\0]* deleted", said)
        assert own.find(pod)
    assert ours(own) == []
    assert own.find(CRD)
    code, said = on_terminal(own, "", tmp_path, "--uninstall", "--delete-ledger", "--yes")
    assert code == 0
    assert "[y/N]" not in said
    assert own.find(CRD) is None
