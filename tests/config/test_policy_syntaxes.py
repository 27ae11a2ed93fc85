"""What the API server enforces for other sharers' syntaxes without the webhook: pods that were not translated, and labels
of namespaces.

The MutatingWebhookConfiguration of these tests calls no webhook.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from gpushare import contract
from gpushare.syntaxes.translation import SYNTAXES
from lab import lab_errors
from tests.config.conftest import WAIT_SECONDS, Cluster
from tests.gpushare.syntaxes import equivalents

pytestmark = pytest.mark.apiserver

NAMESPACES = "/api/v1/namespaces"
HAMI = f"{contract.UNDERSTAND_PREFIX}hami"


def refused(cluster: Cluster, path: str, manifest: dict[str, Any]) -> str:
    """Return the sentence with which creating an object is rejected; empty if it is not."""
    try:
        cluster.administrator.create(path, manifest, dry_run=True)
    except lab_errors.LabError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def understanding(installed: Cluster) -> Iterator[str]:
    """Return the path of the pods of a namespace that understands every syntax, once the policy is in force."""
    labels = {f"{contract.UNDERSTAND_PREFIX}{name}": "true" for name in SYNTAXES}
    probe = equivalents.asking(annotations={"gpu-fraction": "0.5"})
    with installed.administrator.namespace() as namespace:
        installed.administrator.patch(f"{NAMESPACES}/{namespace}", {"metadata": {"labels": labels}})
        path = f"{NAMESPACES}/{namespace}/pods"
        deadline = time.monotonic() + WAIT_SECONDS
        while not refused(installed, path, probe):
            assert time.monotonic() < deadline, f"the policy is not in force after {WAIT_SECONDS} s"
            time.sleep(0.1)
        yield path


def test_pods_that_were_not_translated_are_rejected(installed: Cluster, understanding: str) -> None:
    for syntax, theirs, _ in equivalents.rows():
        manifest = equivalents.pod_with(syntax, equivalents.pairs(theirs))
        sentence = refused(installed, understanding, manifest)
        if "5.5" not in theirs:  # the API server rejects it first
            assert f"in {syntax.title}'s syntax, which gpushare should have translated" in sentence, theirs
        elsewhere = f"{NAMESPACES}/{installed.namespace}/pods"
        assert "gpushare" not in refused(installed, elsewhere, manifest), theirs


def test_other_pods_are_accepted(installed: Cluster, understanding: str) -> None:
    for manifest in equivalents.without():
        assert "gpushare" not in refused(installed, understanding, manifest)


def named(name: str, **labels: str) -> dict[str, Any]:
    keys = {f"{contract.UNDERSTAND_PREFIX}{word}": value for word, value in labels.items()}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"team": "a", **keys}}}


def test_labels_of_namespaces_that_mean_nothing_are_rejected(installed: Cluster, understanding: str) -> None:
    assert understanding
    assert refused(installed, NAMESPACES, named("team-a", hami="true", kai="false")) == ""
    sentence = refused(installed, NAMESPACES, named("team-a", hamii="true"))
    assert "the label gpushare.io/understand-hamii names a syntax that gpushare does not understand" in sentence
    assert "one of hami, kai, gpustack, aliyun, kubeshare, volcano" in sentence
    sentence = refused(installed, NAMESPACES, named("team-a", hami="yes"))
    assert f'the label {HAMI} has the value "yes": write "true" or "false"' in sentence
    with pytest.raises(lab_errors.LabError, match="has no effect in the namespace kube-system"):
        installed.administrator.patch(f"{NAMESPACES}/kube-system?dryRun=All", {"metadata": {"labels": {HAMI: "true"}}})
    installed.administrator.patch(f"{NAMESPACES}/kube-system?dryRun=All", {"metadata": {"labels": {"team": "a"}}})
