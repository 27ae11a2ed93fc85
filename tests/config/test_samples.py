"""Every sample does what its comment says, as judged by the real parser; workloads by the real webhook."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import jsonpatch
import pytest

from gpushare import contract, errors, pod, request
from kubectl_gpushare.source import pod_files as owners
from lab import demo
from tests.config import manifests


def pods(path: Path) -> list[dict[str, Any]]:
    """Return the pods and pod templates of a sample."""
    documents = [document["spec"].get("template", document) for document in manifests.documents(path)]
    return [document for document in documents if "containers" in document["spec"]]


@pytest.mark.parametrize(
    "path",
    [*manifests.SAMPLES, *manifests.WORKLOADS, *manifests.REFUSED, manifests.TORCHRUN],
    ids=lambda path: path.stem,
)
def test_each_sample_has_a_comment_with_the_expected_result(path: Path) -> None:
    comment = [line for line in path.read_text().splitlines() if line.startswith("# ")]
    assert len(comment) >= 2
    assert comment[1].startswith("# Expect: ")
    assert path.read_text().startswith(comment[0])


@pytest.mark.parametrize(
    "path", [*manifests.SAMPLES, *manifests.WORKLOADS, manifests.TORCHRUN], ids=lambda path: path.stem
)
def test_each_sample_parses_as_a_request(path: Path) -> None:
    assert pods(path)
    for manifest in pods(path):
        assert request.parse(manifest).demands


@pytest.mark.slow
def test_the_webhook_places_all_sample_workloads_in_the_demo(tmp_path: Path) -> None:
    demo.write_cluster(tmp_path / demo.CLUSTER)
    waiting: dict[str, list[str]] = {}
    with demo.webhook(tmp_path) as running:
        for path in manifests.WORKLOADS:
            for owner in owners.read(str(path), namespace="default"):
                for number in range(owner.count):
                    manifest = {**owner.pod, "metadata": {**owner.pod["metadata"], "name": f"{path.stem}-{number}"}}
                    response = running.review(manifest)
                    assert response["allowed"], response
                    admitted = jsonpatch.apply_patch(manifest, json.loads(base64.b64decode(response["patch"])))
                    if contract.ALLOCATION in pod.annotations_of(admitted):
                        assert not response.get("warnings"), response
                    else:
                        waiting.setdefault(path.stem, []).append(pod.annotations_of(admitted)[contract.REASON])
    # The placer, which the demo does not run, would ungate both once the second exists.
    assert waiting == {"gang-job": ['waits for its group "gang": its 2 pods are placed together'] * 2}


def test_rejected_samples_are_in_their_own_folder() -> None:
    (path,) = manifests.REFUSED
    for manifest in pods(path):
        with pytest.raises(errors.RequestError, match=r'gpushare\.io/request "1\.5"'):
            request.parse(manifest)


def test_the_demo_uses_every_sample_pod() -> None:
    names = {
        str(path.relative_to(manifests.CONFIG / "samples").with_suffix(""))
        for path in [*manifests.SAMPLES, *manifests.REFUSED]
        if all(document["kind"] == "Pod" for document in manifests.documents(path))
    }
    assert set(demo.SAMPLES) == names
    assert len(demo.SAMPLES) >= 12
