"""The components run from their images as a container runtime runs them: their user, a read-only root, no extra
capability.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpushare import contract
from lab import certificates, demo
from tests.deviceplugin import simulated
from tests.images.image import Image

READY_SECONDS = 60.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # the first test builds what is missing
    pytest.mark.skipif(os.geteuid() != 0, reason="a container with another user takes root"),
]


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gpushare-container-", dir="/tmp") as path:
        Path(path).chmod(0o755)
        yield Path(path)


def written(path: Path, process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + READY_SECONDS
    while not (path.exists() and path.read_text().endswith("\n")):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return path.read_text().strip()


def test_the_webhook_places_a_pod(unpacked: dict[str, Image], directory: Path) -> None:
    shared = directory / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    demo.write_cluster(shared / "cluster.json")
    arguments = ("--from=/run/cluster.json", "--port=0", "--port-file=/run/port", "--host=127.0.0.1")
    arguments += ("--probe-host=127.0.0.1", "--probe-port=0", "--certificate-directory=/run/certificates")
    with unpacked["webhook"].container(*arguments, directory=directory, binds={shared: "/run"}) as process:
        port = int(written(shared / "port", process, directory / "log"))
        assert (shared / "port").stat().st_uid == 65532
        trust = ssl.create_default_context(cafile=shared / "certificates" / "ca.crt")
        asked = demo.Webhook(port, trust)
        samples = Path(simulated.ROOT / "config" / "samples")
        (pod,) = yaml.safe_load_all((samples / "half-gpu.yaml").read_text())
        answer = asked.review(pod)
        assert answer["allowed"], answer
        assert "patch" in answer
        process.terminate()
        assert process.wait(20) == 0, (directory / "log").read_text()


def test_the_agent_serves_and_installs_its_library(unpacked: dict[str, Image], directory: Path) -> None:
    simulated.build()
    gpus = simulated.create(directory / "gpus")
    account, host = directory / "account", directory / "host"
    account.mkdir()
    host.mkdir()
    # No API server answers; everything that does not need one works.
    certificates.create(account, ())
    (account / "token").write_text("token")
    arguments = (
        *("--node-name=node-a", "--kubelet-directory=/host/kubelet", "--root=/host/root", "--run-directory=/host/run"),
        *("--state-directory=/host/state", "--library=/opt/gpushare/libgpushare.so", "--cdi-directory=/host/cdi"),
        *("--pod-resources-socket=/host/holds.sock", "--probe-host=127.0.0.1", "--probe-port=0"),
    )
    environment = {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": "1",
        "SIMGPU_DIR": "/gpus",
        "LD_LIBRARY_PATH": "/driver",
    }
    binds = {
        account: "/run/secrets/kubernetes.io/serviceaccount",
        host: "/host",
        gpus: "/gpus",
        simulated.BUILD: "/driver",
    }
    (host / "kubelet").mkdir()
    capabilities = ("CAP_CHECKPOINT_RESTORE", "CAP_SYS_PTRACE")
    image, log = unpacked["agent"], directory / "log"
    with image.container(
        *arguments, directory=directory, binds=binds, environment=environment, capabilities=capabilities
    ) as process:
        lines = serving(log, process)
        status, text = answer(int(lines["probe_port"]), "/readyz")
        assert status == 500, text
        assert "gpunode: the GPUNode node-a is not written yet" in text
        assert answer(int(lines["probe_port"]), "/healthz")[0] == 200
        (library,) = (host / "root" / "lib").glob("libgpushare-*.so")
        assert library.read_bytes() == (image.root / "opt/gpushare/libgpushare.so").read_bytes()
        assert (host / "run" / contract.ARBITER_SOCKET_NAME).is_socket()
        process.terminate()
        assert process.wait(20) == 0, log.read_text()


def serving(log: Path, process: subprocess.Popen[bytes]) -> dict[str, str]:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        for line in log.read_text().splitlines():
            if line.startswith("{") and (said := json.loads(line))["msg"] == "Serving":
                return dict(said)
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def answer(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_kubeconfig_is_rejected_with_a_reason(unpacked: dict[str, Image], directory: Path) -> None:
    (directory / "shared").mkdir()
    (directory / "shared" / "config").write_text("{}")
    arguments = ("--kubeconfig=/run/config", "--certificate-directory=/run/certificates", "--probe-port=0")
    binds = {directory / "shared": "/run"}
    with unpacked["webhook"].container(*arguments, directory=directory, binds=binds) as process:
        assert process.wait(READY_SECONDS) != 0
    log = (directory / "log").read_text()
    assert "which the container images leave out" in log


def test_the_mps_keeper_is_in_the_agents_image(unpacked: dict[str, Image]) -> None:
    shown = unpacked["agent"].python("-m", "deviceplugin.mps.supervisor", "--help")
    assert "--socket" in shown
