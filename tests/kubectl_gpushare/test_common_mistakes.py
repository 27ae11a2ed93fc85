"""The first attempts of users: the answer to a mistake has the remedy, or the known values."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare import codec
from kubectl_gpushare import kubectl, plugin_errors
from tests import builders
from tests.kubectl_gpushare import sample
from tests.kubectl_gpushare.conftest import Plugin

FORBIDDEN = (
    'Error from server (Forbidden): gpunodes.gpushare.io is forbidden: User "jane" cannot list resource "gpunodes" '
    'in API group "gpushare.io" at the cluster scope'
)


@pytest.fixture
def tenant(fake_kubectl: Callable[[str], str], tmp_path: Path) -> str:
    """Make a kubectl for a user who may read pods, but no GPUNodes."""
    for manifest in sample.pods():
        (tmp_path / manifest["metadata"]["name"]).write_text(json.dumps(manifest))
    return fake_kubectl(
        f"""case "$*" in
        *gpunodes*) echo '{FORBIDDEN}' >&2; exit 1;;
        */events*) echo '{{"kind": "EventList", "items": []}}';;
        */pods/*) name=$(echo "$3" | sed 's|.*/pods/||'); cat {tmp_path}/$name;;
        *view*) echo ml;;
        *) echo '{{"kind": "List", "items": []}}';;
        esac"""
    )


def test_user_without_access_to_gpunodes_gets_no_guesses(plugin: Plugin, tenant: str) -> None:
    ended = plugin("describe", "pod", "trainer", "-n", "ml", KUBECTL_PATH=tenant)
    assert ended.code == 0, ended.err
    assert "Placement:    not known: its GPUNode may not be read; it was given a share on gpu-1" in ended.out
    assert "there is no GPUNode" not in ended.out
    assert 'user "jane" may not list gpunodes' in ended.out
    described = json.loads(plugin("describe", "pod", "trainer", "-n", "ml", "-o", "json", KUBECTL_PATH=tenant).out)
    assert (described["placement"], described["problems"]) == ("Unknown", [])


def test_user_without_access_to_gpunodes_gets_the_pods_reason(plugin: Plugin, tenant: str) -> None:
    ended = plugin("why", "waiting", "-n", "ml", KUBECTL_PATH=tenant)
    assert ended.code == 1
    assert f'pod "waiting" waits: {sample.WAITING}' in ended.err


@pytest.mark.parametrize("verb", ["cordon", "uncordon"])
def test_node_given_as_a_gpu_is_an_error_with_a_remedy(
    plugin: Plugin, fake_kubectl: Callable[[str], str], tmp_path: Path, verb: str
) -> None:
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps({"kind": "List", "items": [codec.to_document(builders.node("gpu-1"))]}))
    program = fake_kubectl(f"cat {path}")
    for words in (("gpu-1",), ("gpu", "gpu-1")):
        ended = plugin(verb, *words, KUBECTL_PATH=program)
        assert ended.code == 1
        assert "gpu-1 is a node: write gpu-1/0 for its first GPU, or node gpu-1 for all of them" in ended.err


def test_flag_before_the_verb_is_an_error_with_a_remedy(plugin: Plugin) -> None:
    ended = plugin("--context", "x", "top")
    assert ended.code == 1
    assert "flags come after the verb, as in `kubectl gpushare top --context …`" in ended.err


def test_missing_kubeconfig_is_an_error_with_a_remedy(plugin: Plugin, fake_kubectl: Callable[[str], str]) -> None:
    program = fake_kubectl("echo 'error: current-context must exist in order to minify' >&2; exit 1")
    ended = plugin("why", "trainer", KUBECTL_PATH=program)
    assert ended.err.startswith("error: no kubeconfig says which cluster: set KUBECONFIG")


def test_namespace_in_a_pod_without_kubeconfig_is_the_pods(
    fake_kubectl: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = fake_kubectl("echo 'error: current-context must exist in order to minify' >&2; exit 1")
    monkeypatch.setattr(kubectl, "_NAMESPACE_OF_POD", str(tmp_path / "namespace"))
    with pytest.raises(plugin_errors.KubectlError, match="no kubeconfig says which cluster"):
        kubectl.Kubectl((), program).namespace()
    (tmp_path / "namespace").write_text("ci")
    assert kubectl.Kubectl((), program).namespace() == "ci"
    with pytest.raises(plugin_errors.KubectlError):
        kubectl.Kubectl(("--context=other",), program).namespace()


def test_fit_names_every_invalid_object_of_a_file(plugin: Plugin, saved: Path, tmp_path: Path) -> None:
    pods = [builders.pod("one", request="2"), builders.pod("two", memory="8GB"), builders.pod("three", request="0.1")]
    wanted = tmp_path / "pods.json"
    wanted.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}))
    ended = plugin("fit", "-f", wanted, "--from", saved)
    assert ended.code == 1
    assert 'gpushare.io/request "2" is more than one GPU' in ended.err
    assert 'gpushare.io/memory "8GB" is not a quantity' in ended.err
    assert "Pod/three" in ended.out, "the good ones are answered all the same"
    assert "Fits:          yes" in ended.out


def test_fit_sums_up_and_says_why_no_more_pods_fit(plugin: Plugin, saved: Path, tmp_path: Path) -> None:
    pods = [builders.pod("small", request="0.1"), builders.pod("large", request="1", gpus="9")]
    wanted = tmp_path / "pods.json"
    wanted.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}))
    assert "In All:        1 of 2 fit, with 1 of 2 pods" in plugin("fit", "-f", wanted, "--from", saved).out
    wanted.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": pods[:1]}))
    (more,) = [line for line in plugin("fit", "-f", wanted, "--from", saved).out.splitlines() if "Fits More" in line]
    assert "more like the last; then no GPU fits 0.1 GPU" in more
