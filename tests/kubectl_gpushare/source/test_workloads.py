"""`why deploy/NAME` explains the waiting pod, or why the controller cannot create any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from gpushare import codec, contract
from kubectl_gpushare import candidates, options, plugin_errors
from kubectl_gpushare.source import workloads
from tests import builders
from tests.kubectl_gpushare.conftest import Plugin

SAID = 'Error creating: admission webhook "pods.gpushare.io" denied the request: gpushare.io/request "1.5" is more than one GPU'


def owned(name: str, kind: str, owner: str, *, gated: bool = False, node: str = "") -> dict[str, Any]:
    manifest = builders.pod(name, request="0.5")
    labels = {contract.SHARE_LABEL: contract.SHARE_LABEL_VALUE, "pod-template-hash": "84db4c6556"}
    owners = [{"kind": kind, "name": owner, "controller": True}]
    manifest["metadata"] |= {"uid": f"uid-{name}", "labels": labels, "ownerReferences": owners}
    if gated:
        manifest["spec"]["schedulingGates"] = [{"name": contract.SCHEDULING_GATE}]
    if node:
        manifest["spec"]["nodeName"] = node
    return manifest


def failed(kind: str, name: str) -> dict[str, Any]:
    metadata = {"namespace": "default", "name": f"{name}.1"}
    about = {"kind": kind, "namespace": "default", "name": name}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": metadata,
        "involvedObject": about,
        "reason": "FailedCreate",
        "message": SAID,
    }


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    items = [
        {**codec.to_document(builders.node("gpu-1"))},
        owned("server-84db4c6556-a", "ReplicaSet", "server-84db4c6556", node="gpu-1"),
        owned("server-84db4c6556-b", "ReplicaSet", "server-84db4c6556", gated=True),
        owned("train-x", "Job", "train", gated=True),
        owned("set-0", "StatefulSet", "set", gated=True),
        owned("short-84db4c6556-a", "ReplicaSet", "short-84db4c6556", node="gpu-1"),
        failed("ReplicaSet", "short-84db4c6556"),
        owned("nightly-29345-x", "Job", "nightly-29345", gated=True),
        failed("ReplicaSet", "bad-84db4c6556"),
        failed("Job", "worse"),
    ]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return path


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("deploy/server", "server-84db4c6556-b"),
        ("deployment.apps/server", "server-84db4c6556-b"),
        ("rs/server-84db4c6556", "server-84db4c6556-b"),
        ("Job/train", "train-x"),
        ("sts/set", "set-0"),
        ("cronjob/nightly", "nightly-29345-x"),
        ("pod/train-x", "train-x"),
        ("default/train-x", "train-x"),
    ],
)
def test_waiting_pod_of_a_workload_is_explained(plugin: Plugin, cluster: Path, word: str, name: str) -> None:
    for verb in (("why",), ("describe", "pod")):
        ended = plugin(*verb, word, "-n", "default", "--from", cluster, "-o", "json")
        assert ended.code == 0, ended.err
        assert json.loads(ended.out)["name"] == name


def test_reason_for_missing_pods_comes_first(plugin: Plugin, cluster: Path) -> None:
    for verb in (("why", "deploy/short"), ("describe", "pod", "deploy/short"), ("describe", "deploy/short")):
        out = plugin(*verb, "-n", "default", "--from", cluster).out
        assert " ".join(out.split()).startswith(f"Missing: pods of Deployment short cannot be created: {SAID}"), out
    assert "Missing" not in plugin("why", "deploy/server", "-n", "default", "--from", cluster).out


@pytest.mark.parametrize(("replicas", "missing"), [(1, ""), (2, "1 of 2 pods"), (None, "pods")])
def test_missing_pods_are_counted_if_the_workload_may_be_read(replicas: int | None, missing: str) -> None:
    class Cluster:
        default_namespace = "default"

        def pods(self, *, namespace: str) -> list[dict[str, Any]]:
            assert namespace == "default"
            return [owned("short-84db4c6556-a", "ReplicaSet", "short-84db4c6556", node="gpu-1")]

        def failures(self, _: str) -> list[dict[str, Any]]:
            event = failed("ReplicaSet", "short-84db4c6556")
            return [{**event, "message": f"(combined from similar events): {SAID}"}]

        def workload(self, *_: str) -> dict[str, Any] | None:
            return {"spec": {"replicas": replicas}} if replicas is not None else None

    meant = workloads.pod_meant(Cluster(), options.Options(), "deploy/short")  # type: ignore[arg-type]
    assert meant.missing == (f"{missing} of Deployment short cannot be created: {SAID}" if missing else "")


@pytest.mark.parametrize("word", ["deploy/bad", "rs/bad-84db4c6556", "job/worse"])
def test_refusal_is_shown_if_a_workload_cannot_create_pods(plugin: Plugin, cluster: Path, word: str) -> None:
    ended = plugin("why", word, "-n", "default", "--from", cluster)
    assert ended.code == 1
    assert f"makes no pods: {SAID}" in ended.err


def test_workloads_are_completed_by_type(cluster: Path) -> None:
    def offered(typed: str) -> list[str]:
        context = click.Context(click.Command("why"))
        context.params = {"files": (str(cluster),), "namespace": "default"}
        return [item.value for item in candidates.pods_or_workloads(context, click.Option(["-x"]), typed)]

    assert offered("deploy/") == ["deploy/server", "deploy/short"]
    assert offered("Job/tr") == ["Job/train"]
    assert offered("train") == ["train-x"]
    assert offered("nothing/") == []


def test_workload_without_shares_is_named(plugin: Plugin, cluster: Path) -> None:
    ended = plugin("why", "deploy/other", "-n", "default", "--from", cluster)
    assert 'no pod of Deployment "other" in namespace "default" asks for a share of a GPU' in ended.err


@pytest.mark.parametrize(
    ("word", "template"), [("deploy/server", "spec.template"), ("cronjob/server", "spec.jobTemplate.spec.template")]
)
def test_annotation_on_the_workload_itself_is_an_error_with_a_remedy(word: str, template: str) -> None:
    class Cluster:
        default_namespace = "default"

        def pods(self, *, namespace: str) -> list[dict[str, Any]]:  # noqa: ARG002
            return []

        def failures(self, _: str) -> list[dict[str, Any]]:
            return []

        def workload(self, *_: str) -> dict[str, Any]:
            return {"metadata": {"annotations": {contract.REQUEST: "0.5"}}}

    with pytest.raises(plugin_errors.KubectlNotFound, match="itself gives its pods no GPU") as raised:
        workloads.pod_meant(Cluster(), options.Options(), word)  # type: ignore[arg-type]
    assert f"{contract.REQUEST} on the " in str(raised.value)
    assert str(raised.value).endswith(f"write it into {template}.metadata.annotations")
