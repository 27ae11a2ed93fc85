"""The same files give the same images: from another folder, with another umask, hash seed and time zone, without a
cache.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from config.images import build, layers
from lab import build as lab_build

COPIED = (
    "config",
    "lab",
    "gpushare",
    "webhook",
    "deviceplugin",
    "kubectl_gpushare",
    "interposer",
    "LICENSE",
    "requirements.lock",
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_builds_give_the_same_digests(archives: build.Archives, tmp_path: Path) -> None:
    checkout, cache = tmp_path / "elsewhere", tmp_path / "cache"
    checkout.mkdir()
    for name in COPIED:
        source = layers.ROOT / name
        if source.is_dir():
            shutil.copytree(source, checkout / name, ignore=shutil.ignore_patterns("__pycache__", "kubernetes"))
        else:
            shutil.copy(source, checkout)
    # Packages need not be downloaded again: their hashes identify them.
    (cache / "images").mkdir(parents=True)
    (cache / "images" / "packages").symlink_to(lab_build.cache_directory() / "images" / "packages")
    script = "import os, runpy, sys; os.umask(0o077); sys.argv[0] = 'x'; runpy.run_module('config.images', run_name='__main__')"
    environment = {**os.environ, "GPUSHARE_CACHE": str(cache), "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7"}
    result = subprocess.run(
        [sys.executable, "-c", script, f"--kubectl={lab_build.kubectl()}"],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    for name, archive in archives.by_name().items():
        again = checkout / "build" / "images" / f"{name}.tar"
        facts = json.loads(again.with_suffix(".json").read_text())
        assert (facts["name"], facts["digest"]) == (archive.name, archive.digest)
        assert again.read_bytes() == archive.path.read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_revision_becomes_a_label(archives: build.Archives, tmp_path: Path) -> None:
    labelled = build.ensure(directory=tmp_path, revision="0123abc")
    assert labelled.webhook.digest != archives.webhook.digest
    config = json.loads(
        subprocess.run(
            ["skopeo", "--insecure-policy", "inspect", "--config", f"oci-archive:{labelled.webhook.path}"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    assert config["config"]["Labels"]["org.opencontainers.image.revision"] == "0123abc"
