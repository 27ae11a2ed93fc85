"""The prints, questions and saved files of `install.sh --uninstall`."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import access
from tests.config import manifests
from tests.config.installation import APPLY, CRD, QUICKLY, ours


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
def test_uninstalling_asks_for_confirmation_on_a_terminal(
    own: access.Access, run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    own.kubectl(*APPLY, f"--kustomize={manifests.CONFIG / 'default'}")
    own.wait_until_established("gpunodes.gpushare.io")
    own.kubectl("create", "-f", str(manifests.REPOSITORY / "tests/config/gpunode.yaml"))
    code, said = on_terminal(own, "n\n", tmp_path, "--uninstall", "--delete-ledger")
    assert code == 1
    assert "the ledger, with the cordons of GPUs: the CRD gpunodes.gpushare.io and 1 GPUNodes\n" in said
    assert said.endswith("error: nothing was changed\n")
    assert len(ours(own)) > 10
    code, said = on_terminal(own, "y\n", tmp_path, "--uninstall")
    assert code == 0
    assert ours(own) == []
    run(*QUICKLY, "--component=defrag")
    assert any(path.endswith("/cronjobs/gpushare-defrag") for path in ours(own))
    code, said = on_terminal(own, "", tmp_path, "--uninstall", "--delete-ledger", "--yes")
    assert code == 0
    assert "[y/N]" not in said
    assert ours(own) == []
    assert own.find(CRD) is None
