"""Other tools read the archives: containerd and skopeo; also an archive for two architectures."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from config.images import archive, build, contents, layers
from config.images.tree import Node, Tree
from lab import prerequisites

CONTAINERD = """\
version = 2
disabled_plugins = ["io.containerd.grpc.v1.cri"]
root = "{directory}/root"
state = "{directory}/state"
[grpc]
  address = "{directory}/containerd.sock"
[ttrpc]
  address = "{directory}/ttrpc.sock"
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test builds what is missing


def skopeo(*words: str) -> Any:
    command = [prerequisites.program("skopeo"), "--insecure-policy", *words]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.fixture(scope="module")
def ctr() -> Iterator[list[str]]:
    """A separate containerd's command."""
    if os.geteuid() != 0:
        pytest.skip("containerd takes root")
    with tempfile.TemporaryDirectory(prefix="gpushare-containerd-", dir="/tmp") as directory:
        config, socket = Path(directory, "config.toml"), Path(directory, "containerd.sock")
        config.write_text(CONTAINERD.format(directory=directory))
        with Path(directory, "log").open("wb") as log:
            process = subprocess.Popen(
                [prerequisites.program("containerd"), "--config", config], stdout=log, stderr=log
            )
        try:
            ctr = [prerequisites.program("ctr"), "--address", str(socket), "--namespace", "k8s.io"]
            deadline = time.monotonic() + 60
            while subprocess.run([*ctr, "version"], capture_output=True, check=False).returncode:
                assert process.poll() is None, Path(directory, "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield ctr
        finally:
            process.terminate()
            process.wait(30)


def test_containerd_imports_images_under_the_manifests_names(ctr: list[str], archives: build.Archives) -> None:
    for made in archives.by_name().values():
        subprocess.run([*ctr, "images", "import", made.path], check=True, capture_output=True, timeout=300)
        shown = subprocess.run(
            [*ctr, "images", "list", f"name=={made.name}"], check=True, capture_output=True, text=True
        )
        (line,) = shown.stdout.splitlines()[1:]
        assert line.split()[0] == made.name
        assert made.digest in line


def test_skopeo_reads_the_archives(archives: build.Archives) -> None:
    for name, made in archives.by_name().items():
        shown = skopeo("inspect", f"oci-archive:{made.path}")
        assert (shown["Digest"], shown["Architecture"]) == (made.digest, layers.native())
        assert len(shown["Layers"]) == 3 + (name == "plugin")


def test_docker_without_index_support_reads_the_archive(archives: build.Archives) -> None:
    shown = skopeo("inspect", "--config", f"docker-archive:{archives.webhook.path}")
    assert shown["config"]["Entrypoint"] == ["python", "-m", "webhook"]


def test_images_share_the_system_layer(archives: build.Archives) -> None:
    first, *others = (skopeo("inspect", f"oci-archive:{made.path}")["Layers"] for made in archives.by_name().values())
    assert [set(first) & set(layers) for layers in others] == [{first[0]}] * 2


def test_an_archive_for_two_architectures_has_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSHARE_CACHE", str(tmp_path / "cache"))
    images = []
    for architecture in contents.MACHINES:
        tree = Tree()
        tree.put("etc/architecture", Node(content=architecture.encode()))
        layer = layers.kept("system", [architecture], (), lambda tree=tree: tree)
        images.append(archive.image(contents.IMAGES[0], architecture, [layer], {}))
    path = tmp_path / "two.tar"
    digest = archive.write(path, "localhost/two", "1", images)
    raw = skopeo("inspect", "--raw", f"oci-archive:{path}")
    assert raw["mediaType"] == archive.INDEX
    assert [manifest["platform"]["architecture"] for manifest in raw["manifests"]] == ["amd64", "arm64"]
    for architecture in contents.MACHINES:
        shown = skopeo("--override-arch", architecture, "inspect", "--config", f"oci-archive:{path}")
        assert shown["architecture"] == architecture
    assert digest.startswith("sha256:")
