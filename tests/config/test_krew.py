"""krew's rules for a manifest; and that the manifest describes the archive correctly.

Rules: https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/ and …/develop/naming-guide/
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import re
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import gpushare

FOLDER = Path(__file__).parents[2] / "config" / "krew"
BASE = "https://releases.invalid/v1"
SHORT = 50  # characters in a line of `kubectl krew search`


def _make() -> ModuleType:
    specification = importlib.util.spec_from_file_location("krew_make", FOLDER / "make.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


make = _make()


@pytest.fixture(scope="module")
def archive() -> bytes:
    content: bytes = make.archive()
    return content


@pytest.fixture(scope="module")
def manifest(archive: bytes) -> dict[str, Any]:
    plugin: dict[str, Any] = yaml.safe_load(make.manifest(archive, base=f"{BASE}/", homepage="https://home.invalid"))
    return plugin


@pytest.fixture(scope="module")
def members(archive: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {member.name: member for member in tar.getmembers()}


@pytest.mark.slow
def test_the_plugin_name_follows_krews_rules(manifest: dict[str, Any]) -> None:
    assert (manifest["apiVersion"], manifest["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert manifest["metadata"] == {"name": "gpushare"}
    assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", manifest["metadata"]["name"])
    assert re.fullmatch(r"v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?", manifest["spec"]["version"])
    assert manifest["spec"]["version"] == f"v{gpushare.__version__}"


def test_the_krew_description_is_short_and_lists_no_flags(manifest: dict[str, Any]) -> None:
    spec = manifest["spec"]
    assert spec.keys() == {"version", "homepage", "shortDescription", "description", "caveats", "platforms"}
    assert len(spec["shortDescription"]) <= SHORT
    assert "\n" not in spec["shortDescription"]
    assert "--" not in spec["description"]
    assert max(map(len, spec["description"].splitlines())) <= 80


def test_the_manifest_has_the_hash_of_the_archive(manifest: dict[str, Any], archive: bytes) -> None:
    for platform in manifest["spec"]["platforms"]:
        assert platform["uri"] == f"{BASE}/kubectl-gpushare-v{gpushare.__version__}.tar.gz"
        assert platform["sha256"] == hashlib.sha256(archive).hexdigest()


def test_every_platform_has_the_program_and_a_licence(
    manifest: dict[str, Any], members: dict[str, tarfile.TarInfo]
) -> None:
    for platform in manifest["spec"]["platforms"]:
        (term,) = platform["selector"]["matchExpressions"]
        assert (term["key"], term["operator"]) == ("os", "In")
        assert set(term["values"]) <= {"linux", "darwin", "windows"}
        (moved,) = platform["files"]
        assert moved == {"from": "gpushare/*", "to": "."}
        assert members[f"gpushare/{platform['bin']}"].mode == 0o755
        assert "gpushare/LICENSE" in members


def test_the_archive_stays_in_its_folder_and_has_no_compiled_files(members: dict[str, tarfile.TarInfo]) -> None:
    for name, member in members.items():
        assert member.isfile()
        assert name.startswith("gpushare/")
        assert ".." not in Path(name).parts
        assert Path(name).suffix not in {".so", ".pyc", ".pyd"}
    assert {"gpushare/licenses/click", "gpushare/licenses/PyYAML"} <= members.keys()


@pytest.mark.slow
def test_the_same_files_give_the_same_archive(archive: bytes) -> None:
    assert make.archive() == archive
