from __future__ import annotations

from pathlib import Path

import pytest

from kubectl_gpushare import plugin_errors
from kubectl_gpushare.source import pod_files
from tests.kubectl_gpushare.conftest import ROOT

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 3
  template:
    metadata: {annotations: {gpushare.io/request: "0.5"}}
    spec: {containers: [{name: main}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: x}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  jobTemplate:
    spec:
      parallelism: 2
      template:
        metadata: {annotations: {gpushare.io/memory: 8Gi}}
        spec: {containers: [{name: main}]}
"""


def test_directory_is_read_as_kubectl_does(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yml", "c.json", "notes.txt"):
        (tmp_path / name).write_text(DEPLOYMENT.replace("name: web", f"name: {name[0]}") if name[0] != "n" else "[")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "deeper" / "d.yaml").write_text("[")
    read = pod_files.read(str(tmp_path), namespace="team")
    assert [manifest.name for manifest in read if manifest.count == 3] == [f"Deployment/{name}" for name in "abc"]
    with pytest.raises(plugin_errors.FileError, match=r"deeper/d\.yaml is neither JSON nor YAML"):
        pod_files.read(str(tmp_path / "deeper"), namespace="team")


def test_owners_create_their_number_of_pods(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(DEPLOYMENT)
    owners = pod_files.read(str(path), namespace="ml")
    assert [(owner.name, owner.count, owner.pod["metadata"]["namespace"]) for owner in owners] == [
        ("Deployment/web", 3, "shop"),
        ("CronJob/nightly", 2, "ml"),
    ]


@pytest.mark.parametrize(
    "path",
    sorted(path for folder in (".", "workloads") for path in (ROOT / "config" / "samples" / folder).glob("*.yaml")),
    ids=lambda path: path.stem,
)
def test_every_sample_manifest_is_read(path: Path) -> None:
    assert pod_files.read(str(path), namespace="default")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("a: [", "neither JSON nor YAML"), ("kind: Pod\nmetadata: {name: x}", "no pod that asks"), ("", "no pod")],
)
def test_manifest_without_shares_is_an_error(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    with pytest.raises(plugin_errors.FileError, match=sentence):
        pod_files.read(str(path), namespace="default")


@pytest.mark.parametrize(
    ("metadata", "sentence"),
    [
        ('annotations: {gpushare.io/requst: "0.5"}', 'the annotation "gpushare.io/requst" asks for nothing: write'),
        ('annotations: {gpushare/memory: "8Gi"}', "write the annotation gpushare.io/memory$"),
        (
            'labels: {gpushare.io/request: "0.5"}',
            'the label "gpushare.io/request" asks for nothing: write the annotation',
        ),
    ],
)
def test_misspelt_key_is_an_error_with_the_correct_one(tmp_path: Path, metadata: str, sentence: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(f"kind: Pod\nmetadata: {{name: x, {metadata}}}\nspec: {{containers: [{{name: main}}]}}")
    with pytest.raises(plugin_errors.FileError, match=sentence):
        pod_files.read(str(path), namespace="default")


@pytest.mark.parametrize("metadata", ["labels: {gpushare.io/share: 'true'}", "labels: {app: gpushare}"])
def test_foreign_labels_are_ignored(tmp_path: Path, metadata: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(f"kind: Pod\nmetadata: {{name: x, {metadata}}}\nspec: {{containers: [{{name: main}}]}}")
    with pytest.raises(plugin_errors.FileError, match="has no pod that asks"):
        pod_files.read(str(path), namespace="default")


def test_missing_file_is_an_error() -> None:
    with pytest.raises(plugin_errors.FileError, match="No such file"):
        pod_files.read("/nonexistent", namespace="default")
