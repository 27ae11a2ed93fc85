"""The kustomization that install.sh applies: images, components, the kubelet's directory, and rejected settings."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpushare import contract
from gpushare.object_parsers import read_yaml
from lab import build
from tests.config import manifests

PROGRAM = manifests.CONFIG / "overlay.py"
DIGEST = "sha256:" + "a" * 64


@pytest.fixture(scope="module")
def overlay() -> ModuleType:
    spec = importlib.util.spec_from_file_location("overlay", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["overlay"] = module  # dataclasses look up the module there
    spec.loader.exec_module(module)
    return module


def pushed(folder: Path, parts: Sequence[str] = ("webhook", "agent", "plugin")) -> Path:
    repository = "registry.example.org/team"
    path = folder / "pushed.json"
    entries = {part: {"repository": f"{repository}/{part}", "tag": "0.3.0", "digest": DIGEST} for part in parts}
    path.write_text(json.dumps(entries))
    return path


def rendered(overlay: ModuleType, folder: Path, **wanted: Any) -> list[dict[str, Any]]:
    overlay.write(folder, overlay.Wanted(**wanted))
    done = subprocess.run(
        [build.kubectl(), "kustomize", folder], capture_output=True, text=True, timeout=60, check=True
    )
    return [document for document in read_yaml(done.stdout) if document]


def images(objects: list[dict[str, Any]]) -> set[str]:
    return {
        container["image"]
        for manifest in objects
        if manifest["kind"] in {"Deployment", "DaemonSet"}
        for container in manifest["spec"]["template"]["spec"]["containers"]
    }


def agent(objects: list[dict[str, Any]]) -> dict[str, Any]:
    daemon_set: dict[str, Any] = next(
        doc for doc in objects if doc["metadata"]["name"] == "gpushare-agent" and doc["kind"] == "DaemonSet"
    )
    return daemon_set


@pytest.mark.apiserver
@pytest.mark.parametrize(
    ("registry", "was_pushed", "wanted"),
    [
        ("", False, {"localhost/gpushare/webhook:0.3.0", "localhost/gpushare/agent:0.3.0"}),
        ("", True, {f"registry.example.org/team/webhook@{DIGEST}", f"registry.example.org/team/agent@{DIGEST}"}),
        ("registry.example.org/team", True, {f"registry.example.org/team/webhook@{DIGEST}", f"registry.example.org/team/agent@{DIGEST}"}),
        ("127.0.0.1:5000/other", True, {"127.0.0.1:5000/other/webhook:0.3.0", "127.0.0.1:5000/other/agent:0.3.0"}),
        ("127.0.0.1:5000/other", False, {"127.0.0.1:5000/other/webhook:0.3.0", "127.0.0.1:5000/other/agent:0.3.0"}),
    ],
)  # fmt: skip
def test_images_are_referenced_by_known_digests(
    overlay: ModuleType, tmp_path: Path, registry: str, was_pushed: bool, wanted: set[str]
) -> None:
    record = pushed(tmp_path) if was_pushed else tmp_path / "none"
    folder = tmp_path / "out"
    folder.mkdir()
    # With a component that adds a pod, which uses the agent's image.
    assert images(rendered(overlay, folder, registry=registry, pushed=record, components=["mps"])) == wanted


def test_the_plugins_image_is_named_if_it_was_pushed(overlay: ModuleType, tmp_path: Path) -> None:
    named = [entry["name"] for entry in overlay.images("", pushed(tmp_path))]
    assert named == [f"localhost/gpushare/{part}" for part in ("webhook", "agent", "plugin")]
    assert [entry["name"] for entry in overlay.images("", pushed(tmp_path, ("webhook", "agent")))] == named[:2]


@pytest.mark.apiserver
def test_components_apply_alone_and_all_together(overlay: ModuleType, tmp_path: Path) -> None:
    names = sorted(path.parent.name for path in manifests.CONFIG.glob("components/*/kustomization.yaml"))
    assert {"cdi", "mig", "mps"} <= set(names)
    objects = rendered(overlay, tmp_path, components=[*names, *names], pushed=tmp_path / "none")
    volumes = {volume["name"] for volume in agent(objects)["spec"]["template"]["spec"]["volumes"]}
    assert "cdi" in volumes


def test_components_follow_those_that_they_patch_in_any_order_of_the_arguments(
    overlay: ModuleType, tmp_path: Path
) -> None:
    names = ["driver-memory", "deny-unregistered", "opt-in", "runtime-class", "mps", "driver-root", "cdi", "openshift"]
    overlay.write(tmp_path, overlay.Wanted(components=names, pushed=tmp_path / "none"))
    document = json.loads((tmp_path / "kustomization.yaml").read_text())
    assert document["components"] == [f"config/components/{name}" for name in reversed(names)]


@pytest.mark.apiserver
def test_a_kubelet_directory_changes_only_host_paths(overlay: ModuleType, tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    for folder in (before, after):
        folder.mkdir()
    root = "/var/snap/microk8s/common/var/lib/kubelet"
    plain = rendered(overlay, before, pushed=tmp_path / "none")
    moved = rendered(overlay, after, pushed=tmp_path / "none", kubelet_root=f"{root}/")
    paths = {
        volume["name"]: volume["hostPath"]["path"] for volume in agent(moved)["spec"]["template"]["spec"]["volumes"]
    }
    assert (paths["device-plugins"], paths["pod-resources"]) == (f"{root}/device-plugins", f"{root}/pod-resources")
    text = json.dumps(moved, sort_keys=True).replace(root, "/var/lib/kubelet")
    types = ', "type": "Directory"'
    assert text.replace(types, "") == json.dumps(plain, sort_keys=True).replace(types, "")


@pytest.mark.apiserver
def test_an_installation_has_no_configurations(overlay: ModuleType, tmp_path: Path) -> None:
    objects = rendered(overlay, tmp_path, pushed=tmp_path / "none")
    names = {
        kind: [doc["metadata"]["name"] for doc in objects if doc["kind"] == kind] for kind in ("ConfigMap", "DaemonSet")
    }
    assert names == {"ConfigMap": [contract.PLACEMENT_CONFIG_MAP], "DaemonSet": ["gpushare-agent"]}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--component", "cdl"], "--component cdl does not exist: write one of borrow, cdi, "),
        (["--component", "../default"], "--component ../default does not exist"),
        (["--component", "demand-gangs"], "--component demand-gangs needs demand: write --component demand as well, or --without"),
        (["--registry", "https://registry.example.org/x"], "--registry https://registry.example.org/x: write REGISTRY/PREFIX"),
        (["--registry", "Registry/x"], "--registry Registry/x: write REGISTRY/PREFIX"),
        (["--kubelet-root", "var/lib/kubelet"], "--kubelet-root var/lib/kubelet: write an absolute path"),
    ],
)  # fmt: skip
def test_invalid_overlay_settings_are_rejected_with_a_reason(tmp_path: Path, words: list[str], sentence: str) -> None:
    done = subprocess.run(
        [sys.executable, PROGRAM, tmp_path, *words], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {sentence}")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"webhook": {"repository": "x"}, "agent": {}}', '{"webhook": 1}'])
def test_an_invalid_list_of_pushed_images_is_rejected(overlay: ModuleType, tmp_path: Path, text: str) -> None:
    path = tmp_path / "pushed.json"
    path.write_text(text)
    with pytest.raises(overlay.Mistake, match=r"is invalid .*: run make images PUSH=REGISTRY/PREFIX again"):
        list(overlay.images("", path))
