"""The images, built if necessary and unpacked; and a registry."""

from __future__ import annotations

import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.images import apt, build, layers, packages
from lab import addresses
from lab import build as lab_build
from tests.images import image

REGISTRY = """\
version: 0.1
storage: {{filesystem: {{rootdirectory: {directory}}}}}
http: {{addr: "{address}"}}
log: {{level: warn}}
"""


@pytest.fixture(scope="session")
def archives() -> build.Archives:
    return build.ensure(kubectls=[lab_build.kubectl()])


@pytest.fixture(scope="session")
def unpacked(archives: build.Archives) -> Iterator[dict[str, image.Image]]:
    # Not pytest's directory, which only its owner can enter: the webhook runs as another user.
    with tempfile.TemporaryDirectory(prefix="gpushare-images-") as directory:
        Path(directory).chmod(0o755)
        images = {}
        for name, archive in archives.by_name().items():
            images[name] = image.unpacked(archive.path, Path(directory) / name)
        yield images


@pytest.fixture(params=["webhook", "agent", "plugin"])
def made(request: pytest.FixtureRequest, unpacked: dict[str, image.Image]) -> image.Image:
    """Each image in turn."""
    return unpacked[request.param]


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Debian's registry, unpacked rather than installed: installed, it would run as a service and listen on all
    addresses.
    """
    directory = tmp_path_factory.mktemp("registry")
    apt.Apt().update()
    ((_, path),) = packages.fetch(packages.newest(["docker-registry"], layers.native())).items()
    subprocess.run(["dpkg-deb", "--extract", path, directory], check=True)
    address = f"127.0.0.1:{next(iter(addresses.free_ports('127.0.0.1', (5000,))))}"
    (directory / "config.yml").write_text(REGISTRY.format(directory=directory / "blobs", address=address))
    with (directory / "log").open("wb") as log:
        command: list[str | Path] = [directory / "usr/bin/docker-registry", "serve", directory / "config.yml"]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"http://{address}/v2/", timeout=5).close()
                break
            except (urllib.error.URLError, ConnectionError):
                assert process.poll() is None, (directory / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(30)
