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

from config.images import build, contents, layers, preloaded
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
# Builds with another umask. A layer whose plain bytes the first build compressed too is not compressed again, which takes
# longer than all else; gpushare's own layers are.
SCRIPT = """
import gzip, hashlib, json, os, pathlib, runpy, sys
compress, compressed = gzip.compress, json.loads(sys.argv[1])

def remembered(plain, **options):
    path = compressed.get(f"sha256:{hashlib.sha256(plain).hexdigest()}")
    return pathlib.Path(path).read_bytes() if path else compress(plain, **options)

gzip.compress = remembered
os.umask(0o077)
sys.argv[:2] = ["x"]
runpy.run_module("config.images", run_name="__main__")
"""


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
    # One compiler's library is built again, and the other's is taken over.
    other = preloaded.library(next(machine for name, machine in contents.MACHINES.items() if name != layers.native()))
    shutil.copytree(other.parent, checkout / other.parent.relative_to(layers.ROOT))
    kept = (lab_build.cache_directory() / "images" / "layers").glob("[!g]*/layer.json")
    compressed = {json.loads(path.read_text())["diff_id"]: str(path.with_name("layer.tar.gz")) for path in kept}
    environment = {**os.environ, "GPUSHARE_CACHE": str(cache), "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7"}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(compressed), f"--kubectl={lab_build.kubectl()}"],
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
