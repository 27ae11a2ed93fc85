from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from gpushare import codec
from gpushare.nodefilters import volumes
from kubectl_gpushare import plugin_errors
from kubectl_gpushare.source import files
from tests.kubectl_gpushare import sample
from tests.kubectl_gpushare.conftest import Plugin


def names(source: files.Files, **chosen: str) -> list[str]:
    return [node.name for node in source.gpu_nodes(**chosen)]


def test_kinds_of_storage_are_those_that_placement_reads() -> None:
    """The list exists twice, because the plugin starts faster without the package of the other."""
    assert set(volumes.KINDS) == files.STORAGE


def test_kubectls_json_is_read(saved: Path) -> None:
    source = files.Files([str(saved)])
    assert tuple(source.gpu_nodes()) == sample.nodes()
    assert source.pod("ml", "trainer")["metadata"]["uid"] == "uid-trainer"


def test_a_yaml_list_reads_as_the_same_json(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump(json.loads(saved.read_text())))
    assert files.Files([str(path)]).gpu_nodes() == files.Files([str(saved)]).gpu_nodes()


def test_yaml_with_several_documents_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump_all([*map(codec.to_document, sample.nodes()), *sample.pods(), None]))
    source = files.Files([str(path)])
    assert names(source) == ["gpu-1", "gpu-2", "gpu-10"]
    assert source.pods() is not None


def test_several_files_form_one_cluster(tmp_path: Path) -> None:
    paths = []
    for node in sample.nodes():
        paths.append(tmp_path / f"{node.name}.json")
        paths[-1].write_text(json.dumps(codec.to_document(node)))
    assert names(files.Files(map(str, paths))) == ["gpu-1", "gpu-2", "gpu-10"]


def test_labels_and_names_choose_nodes(tmp_path: Path) -> None:
    documents = [codec.to_document(node) for node in sample.nodes()]
    path, machines = tmp_path / "gpunodes.json", tmp_path / "nodes.json"
    path.write_text("".join(map(json.dumps, documents)))
    machines.write_text(json.dumps({"kind": "Node", "metadata": {"name": "gpu-2", "labels": {"pool": "b"}}}))
    source = files.Files([str(path), str(machines)])
    assert names(source, label_selector="pool=b") == ["gpu-2"]
    assert names(source, label_selector="pool!=b") == []  # the other Nodes were not saved
    assert names(source, name="gpu-10") == ["gpu-10"]


def test_selector_without_saved_nodes_is_an_error(saved: Path) -> None:
    with pytest.raises(
        plugin_errors.FileError, match="-l goes by the labels of Nodes, and no Node was saved: save them with"
    ):
        files.Files([str(saved)]).gpu_nodes(label_selector="a=b")


def test_only_pods_that_share_gpus_are_listed(saved: Path) -> None:
    pods = files.Files([str(saved)]).pods(namespace="web")
    assert [pod["metadata"]["name"] for pod in pods or ()] == ["small"]


def test_pods_of_a_node_include_unbound_pods(saved: Path) -> None:
    pods = files.Files([str(saved)]).pods(node="gpu-10")
    assert [pod["metadata"]["name"] for pod in pods or ()] == ["b", "waiting", "just-made"]


def test_pods_are_unknown_if_none_were_saved(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps(codec.to_document(sample.nodes()[0])))
    assert files.Files([str(path)]).pods() is None


def test_missing_pod_names_its_other_namespace(saved: Path) -> None:
    with pytest.raises(
        plugin_errors.KubectlNotFound, match='"trainer" not found in namespace "default"; there is one in ml: add -n ml'
    ):
        files.Files([str(saved)]).pod("default", "trainer")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "has no GPUNode or pod"),
        ('{"kind": "List", "items": []}', "has no GPUNode or pod"),
        ("kind: Node\nmetadata: {name: a}\n", "has no GPUNode or pod"),
        ('{"kind": "GPUNode"', "is not JSON"),
        ('{"kind": "GPUNode"}', r"GPUNode that is invalid: metadata\.name"),
        ("a: [", "neither JSON nor YAML"),
        ("a: 2026-13-45", "neither JSON nor YAML"),
        ('{"a": ' + "[" * 100_000, "is not JSON"),
        ('{"a": 1' + "0" * 5000 + "}", "is not JSON"),
        ('{[1]: "a"}', "is not JSON .* name of a field"),
        ('{"kind": "PodList", "metadata": 5, "items": []}', "has no GPUNode or pod"),
    ],
)
def test_invalid_file_is_named_with_a_remedy(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "bad"
    path.write_text(content)
    with pytest.raises(plugin_errors.FileError, match=rf"bad .*{sentence}"):
        files.Files([str(path)])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(plugin_errors.FileError, match=r"missing cannot be read: No such file.*kubectl get gpunodes"):
        files.Files([str(tmp_path / "missing")])


@pytest.mark.parametrize(
    ("document", "verb", "problem"),
    [
        ({"kind": "Pod", "metadata": "x"}, "top", "cluster.json is not what kubectl prints ('str' object has no"),
        (
            {"kind": "Node", "metadata": {"name": "a"}, "status": {"allocatable": "8"}},
            "fit --request 0.5",
            "cluster.json is not what kubectl prints",
        ),
        ({"kind": "GPUNode", "metadata": {"name": 7}}, "top", "a GPUNode that is invalid: metadata.name"),
        (
            {"kind": "Pod", "metadata": {"annotations": {"gpushare.io/request": 0.5}}},
            "top",
            'metadata.annotations has "gpushare.io/request" that is not text: put it in quotes',
        ),
        (
            {"kind": "Pod", "metadata": {"labels": {5: "a"}}},
            "top",
            'metadata.labels has "5" that is not text: put it in quotes',
        ),
    ],
)
def test_object_of_a_wrong_shape_is_an_error_with_a_remedy(
    plugin: Plugin, saved: Path, document: dict[str, object], verb: str, problem: str
) -> None:
    cluster = json.loads(saved.read_text())
    cluster["items"].append(document)
    saved.write_text(yaml.safe_dump(cluster) if "labels" in str(document) else json.dumps(cluster))
    ended = plugin(*verb.split(), "--from", saved)
    assert ended.code == 1
    assert problem in ended.err
    assert "put it in quotes" in ended.err or "GPUNode" in problem or "kubectl get gpunodes,nodes,pods" in ended.err


LABELS = {"pool": "a", "zone": "eu-1", "example.com/gpu": ""}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("pool=a", True),
        ("pool==a", True),
        ("pool=b", False),
        ("pool!=b", True),
        ("nothing!=b", True),
        ("pool=a,zone=eu-2", False),
        ("pool in (a, b),zone", True),
        ("pool notin (a,b)", False),
        ("nothing notin (a)", True),
        ("example.com/gpu", True),
        ("example.com/gpu=", True),
        ("!nothing", True),
        ("!pool", False),
    ],
)
def test_selectors_match_like_the_api_server(text: str, matches: bool) -> None:
    assert files.parse_selector(text)(LABELS) is matches


@pytest.mark.parametrize("text", ["a b", "=a", "pool in a", "pool=a,", "pool>1"])
def test_invalid_selector_is_quoted(text: str) -> None:
    with pytest.raises(plugin_errors.PluginError, match="is no label selector"):
        files.parse_selector(text)
