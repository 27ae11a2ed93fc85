"""Runs the plugin as users run it: as a separate process that kubectl finds on PATH; or, faster, in this process."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare import codec, contract
from kubectl_gpushare import cli
from lab.access import KUBECTL_ENVIRONMENT, Access
from tests.kubectl_gpushare import sample

ROOT = Path(__file__).parents[2]
SECONDS = 60.0
LABEL = "plugin-test=yes"  # label of the sample's Nodes and GPUNodes in a real cluster
PATIENCE = "--request-timeout=60s"  # completion gives up after 3 s, which a busy machine may need
HIDDEN = frozenset({"KUBECONFIG", "KUBECTL_PATH", "NO_COLOR"})


@dataclasses.dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


Plugin = Callable[..., Ended]


def environment(**more: str) -> dict[str, str]:
    """Return our environment without variables that would lead to a user's cluster or change the output."""
    kept = {key: value for key, value in os.environ.items() if key not in HIDDEN}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "KUBECONFIG": "/nonexistent", **more}


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Plugin:
    """Run the plugin with these arguments in this process: starting one costs more than most commands."""
    for key in HIDDEN:
        monkeypatch.delenv(key, raising=False)
    for key, value in environment().items():
        monkeypatch.setenv(key, value)

    def run(*arguments: str | Path, input: str = "", **variables: str) -> Ended:  # noqa: A002
        capfd.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(input.encode())))
            for key, value in variables.items():
                patch.setenv(key, value)
            kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
            try:
                code = cli.main([*map(str, arguments)])
            finally:
                for number, handler in kept.items():
                    signal.signal(number, handler)
        said = capfd.readouterr()
        return Ended(code, said.out, said.err)

    return run


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Save the sample cluster in a file."""
    return sample.save(tmp_path / "cluster.json")


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Make a folder with the plugin's two programs, as an installation puts them on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, function in (("kubectl-gpushare", "main"), ("kubectl_complete-gpushare", "complete")):
        program = folder / name
        program.write_text(
            f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
            f"from kubectl_gpushare.__main__ import {function}\nsys.exit({function}())\n"
        )
        program.chmod(0o755)
    return folder


@pytest.fixture
def fake_kubectl(tmp_path: Path) -> Callable[[str], str]:
    """Make a kubectl from a shell script, for answers that a real cluster cannot be made to give."""

    def make(script: str) -> str:
        program = tmp_path / "fake-kubectl"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return str(program)

    return make


class Kubectl:
    """`kubectl …` as a user types it, with the plugin on PATH; calls of the plugin run in this process."""

    def __init__(self, access: Access, programs: Path, plugin: Plugin) -> None:
        path = f"{programs}:{access.kubectl_program.parent}:{os.environ['PATH']}"
        self._variables = {"PATH": path, "KUBECONFIG": str(access.kubeconfig), "TERM": "xterm", **KUBECTL_ENVIRONMENT}
        self._plugin = plugin
        self.access = access  # to read and write objects in a tenth of the time of kubectl
        self.environment = environment(**self._variables)

    def __call__(self, *arguments: str) -> Ended:
        if arguments[0] == "gpushare":
            return self._plugin(*arguments[1:], **self._variables)
        return self.run(*arguments)

    def run(self, *arguments: str) -> Ended:
        """Run kubectl, which also finds and starts the plugin."""
        result = subprocess.run(
            ["kubectl", *arguments],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            env=self.environment,
            stdin=subprocess.DEVNULL,
        )
        return Ended(result.returncode, result.stdout, result.stderr)

    @contextlib.contextmanager
    def allowed(self, user: str, role: str) -> Iterator[None]:
        """Give a user a ClusterRole."""
        path, group = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", "rbac.authorization.k8s.io"
        subject = {"apiGroup": group, "kind": "User", "name": user}
        reference = {"apiGroup": group, "kind": "ClusterRole", "name": role}
        name = f"plugin-test-{user}"
        self.access.create(path, {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]})
        try:
            yield
        finally:
            self.access.delete(f"{path}/{name}")

    def cordon(self, node: str, *uuids: str) -> None:
        """Cordon these GPUs of a node, and no others."""
        self.access.patch(f"{contract.GPUNODE_PATH}/{node}", {"spec": {"cordoned": uuids}})


@pytest.fixture
def kubectl(api_server: Access, programs: Path, plugin: Plugin) -> Kubectl:
    return Kubectl(api_server, programs, plugin)


@pytest.fixture(scope="module")
def namespace(api_server: Access) -> Iterator[str]:
    """Create a namespace with the sample's pods, and its GPUNodes in the cluster."""
    base = ROOT / "config" / "base"
    files = [f"--filename={base / name}" for name in ("crd/gpunodes.yaml", "rbac/viewer.yaml")]
    api_server.kubectl("apply", "--server-side", "--force-conflicts", *files)
    api_server.wait_until_established("gpunodes.gpushare.io")
    with api_server.namespace("plugin") as name:
        for node in sample.nodes():
            document = codec.to_document(node)
            document["metadata"]["labels"] = labels = dict([LABEL.split("=")])
            metadata = {"name": node.name, "labels": labels}
            status = {"conditions": [{"type": "Ready", "status": "True"}]}
            api_server.create("/api/v1/nodes", {"metadata": metadata, "status": status})
            for condition in document["status"]["conditions"]:
                condition["lastTransitionTime"] = condition["lastTransitionTime"] or "2026-03-01T08:00:00Z"
            status = document.pop("status")
            api_server.create(contract.GPUNODE_PATH, document)
            api_server.patch(f"{contract.GPUNODE_PATH}/{node.name}/status", {"status": status})
        for pod in (sample.gated("x/waiting", request="0.5", reason=sample.WAITING), sample.pod("x/nginx", ours=False)):
            del pod["metadata"]["uid"], pod["metadata"]["creationTimestamp"], pod["status"]
            pod["metadata"]["namespace"] = name
            pod["spec"]["containers"][0]["image"] = "gpushare/sample:0.1"
            api_server.create(f"/api/v1/namespaces/{name}/pods", pod)
        yield name
        for path in (contract.GPUNODE_PATH, "/api/v1/nodes"):
            api_server.delete(f"{path}?labelSelector={LABEL}")
