"""`migrate`: manifests of other sharers as a diff, and as new manifests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare import contract
from kubectl_gpushare.planning import migration
from tests.kubectl_gpushare.conftest import Plugin
from tests.kubectl_gpushare.test_views import compare

BEFORE = Path(__file__).parent / "migrate" / "before.yaml"


def test_the_diff_equals_the_golden_file(plugin: Plugin) -> None:
    ended = plugin("migrate", "-f", BEFORE)
    assert ended.code == 2
    compare("migrate", ended.out.splitlines())
    said = " ".join(ended.err.split())
    assert "warning: Pod/ordered: sharedgpu/priority has no effect in gpushare" in said
    assert 'Pod/fine-fraction stays as it is: gpu-fraction "0.125" is finer than 0.01 of a GPU' in said


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_the_new_manifests_are_complete_and_have_nothing_left_to_migrate(
    plugin: Plugin, tmp_path: Path, form: str
) -> None:
    out = plugin("migrate", "-f", BEFORE, "-o", form).out
    documents = json.loads(out)["items"] if form == "json" else list(yaml.safe_load_all(out))
    names = [f"{document['kind']}/{document['metadata']['name']}" for document in documents]
    assert names == [
        *("Deployment/web", "CronJob/nightly", "Job/train", "Pod/sharepod1"),
        *("Pod/fine-fraction", "Pod/ordered", "Pod/whole", "ConfigMap/settings"),
    ]
    path = tmp_path / f"migrated.{form}"
    path.write_text(out)
    again = plugin("migrate", "-f", path)
    assert (again.code, again.out) == (2, "")  # what has no equivalent is still there
    template = documents[0]["spec"]["template"]
    assert template["metadata"] == {
        "labels": {"app": "web"},
        "annotations": {
            contract.REQUEST: "0.3",
            contract.LIMIT: "0.3",
            contract.MEMORY: "3000Mi",
            contract.CONTAINER: "server",
        },
    }
    assert template["spec"]["containers"][0]["resources"] == {"limits": {"cpu": 2}}


def job(*fractions: str) -> dict[str, Any]:
    tasks = [
        {"template": {"metadata": {"annotations": {"gpu-fraction": text}}, "spec": {"containers": [{"name": "main"}]}}}
        for text in fractions
    ]
    return {"kind": "Job", "metadata": {"name": "j"}, "spec": {"tasks": tasks}}


def sharepod(**keys: str) -> dict[str, Any]:
    annotations = {f"kubeshare/{key}": text for key, text in keys.items()}
    metadata = {"name": "s", "annotations": annotations}
    api = {"apiVersion": "kubeshare.nthu/v1", "kind": "SharePod"}
    return {**api, "metadata": metadata, "spec": {"containers": [{"name": "main"}]}}


@pytest.mark.parametrize(
    "document", [job("0.5", "0.125"), sharepod(gpu_request="0.125", gpu_limit="1.0")], ids=["a template", "a SharePod"]
)
def test_a_refused_object_stays_as_it_is(document: dict[str, Any]) -> None:
    found = migration.migrate(document)
    assert found is not None
    assert "finer than 0.01" in found.refused[0]
    assert found.after == document


@pytest.mark.parametrize(
    ("annotations", "named"),
    [
        ({"gpu-fraction": "0.5"}, ["PyTorchJob/train"]),
        ({"gpu-fraction": "0.125"}, ["PyTorchJob/train"]),
        ({contract.REQUEST: "0.5"}, ["PyTorchJob/train"]),  # translated by the webhook
        ({}, []),
    ],
)
def test_owners_of_kinds_that_are_not_read_are_named(annotations: dict[str, str], named: list[str]) -> None:
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "train", "uid": "t", "controller": True}
    metadata = {"annotations": annotations, "ownerReferences": [owner]}
    pods = [{"kind": "Pod", "metadata": metadata, "spec": {"containers": [{"name": "main"}]}}] * 2
    assert migration.unread_owners(pods) == named
    assert migration.unread_owners([*pods, {"kind": "PyTorchJob", "metadata": {"name": "train", "uid": "t"}}]) == []


def test_manifests_without_anything_to_migrate_are_said_so(plugin: Plugin, tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {}}))
    ended = plugin("migrate", "-f", path)
    assert (ended.code, ended.out) == (0, "")
    assert ended.err == "nothing to migrate: no pod asks for a GPU in another sharer's syntax\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["migrate"], "specify what to migrate: either -f FILE, or -n NAMESPACE"),
        (["migrate", "-f", "x.yaml", "-n", "ml"], "specify what to migrate: either -f FILE, or -n NAMESPACE"),
        (["migrate", "-f", "/nonexistent"], "/nonexistent cannot be read"),
        (["migrate", "-f", "-", "-f", "-"], "standard input can be read only once"),
    ],
)
def test_wrong_words_are_explained(plugin: Plugin, words: list[str], sentence: str) -> None:
    ended = plugin(*words)
    assert ended.code == 1
    assert sentence in ended.err


def test_values_that_are_not_text_are_explained(plugin: Plugin, tmp_path: Path) -> None:
    metadata: dict[str, Any] = {"name": "p", "annotations": {"gpu-fraction": 0.5}}
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [{"name": "main"}]}}
    template = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"template": manifest},
    }
    for document in (manifest, template):
        path = tmp_path / "pod.yaml"
        path.write_text(yaml.safe_dump(document))
        ended = plugin("migrate", "-f", path)
        assert ended.code == 1
        assert 'metadata.annotations has "gpu-fraction" that is not text: put it in quotes' in ended.err
