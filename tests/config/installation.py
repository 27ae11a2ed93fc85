"""install.sh, run as a user runs it, and what it installed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from lab import access
from tests.config import manifests

SYSTEM = "gpushare-system"


def install(
    *flags: str,
    path: str = "",
    kubeconfig: Path | None = None,
    more: dict[str, str] | None = None,
    cwd: Path = manifests.REPOSITORY,
) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        **access.KUBECTL_ENVIRONMENT,
        **(more or {}),
        "PATH": f"{path}{os.pathsep if path else ''}{os.environ['PATH']}",
        "KUBECONFIG": str(kubeconfig or "/nonexistent"),
    }
    command = [str(manifests.REPOSITORY / "install.sh"), *flags]
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


KINDS = (
    "validatingadmissionpolicy,validatingadmissionpolicybinding,mutatingwebhookconfiguration,"
    "clusterrole,clusterrolebinding"
)


def ours(own: access.Access) -> list[str]:
    """Return all objects of gpushare except its ledger."""
    everywhere = own.kubectl("get", KINDS, "--output=name").split()
    workloads = own.kubectl(
        "get", "deploy,ds,cronjob,secret,sa", "--namespace=gpushare-system", "--output=name"
    ).split()
    return [name for name in (*everywhere, *workloads) if "gpushare" in name]


# No pod can run here because there is no kubelet, so do not wait long; install.sh then reports a failure.
QUICKLY = ("--skip-preflight", "--timeout=1")


def installed(done: subprocess.CompletedProcess[str]) -> None:
    """Run install.sh; it installs everything, then reports that no pod runs."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert "error: gpushare is installed, but does not work yet, because of" in done.stderr, done.stderr
    assert "webhook-ready" in done.stderr
