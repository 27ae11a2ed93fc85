"""Every failure between a verb and the cluster is one sentence with its remedy, the same for every verb.

The texts are those of kubectl 1.36, printed by a script.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare import codec
from kubectl_gpushare import cli
from tests.kubectl_gpushare import sample
from tests.kubectl_gpushare.conftest import ROOT, Plugin

SAMPLES = ROOT / "config" / "samples"
# Every verb that reads the cluster, with valid words.
LINES = {
    "top": "top",
    "top pods": "top pods -A",
    "ui": "ui --export page.html",
    "describe": "describe node gpu-1",
    "why": "why ml/waiting",
    "fit": "fit --request 0.5",
    "defrag": "defrag --request 1",
    "simulate": f"simulate -f {SAMPLES / 'half-gpu.yaml'}",
    "resize": "resize trainer -n ml --memory 50Gi",
    "cordon": "cordon gpu gpu-1/0",
    "uncordon": "uncordon gpu gpu-1/0",
    "rightsize": "rightsize -A",
    "audit": "audit",
    "config": f"config diff --node gpu-1 -f {SAMPLES / 'config' / 'configmap.yaml'}",
    "config show": "config show",
}
OFFLINE = {"completion", "version"}  # verbs that read no cluster
ELSEWHERE = {"check", "migrate"}  # read other kinds than GPUNodes: see test_check and test_migrate
FROM_FILES = {name: line for name, line in LINES.items() if name not in {"cordon", "uncordon"}}

MISSING = "Error from server (NotFound): the server could not find the requested resource"
FORBIDDEN = (
    'Error from server (Forbidden): gpunodes.gpushare.io is forbidden: User "jane" cannot list resource "gpunodes" '
    'in API group "gpushare.io" at the cluster scope'
)
# kubectl's error -> the beginning of the plugin's error, and its remedy.
SAID = {
    "not installed": (MISSING, "gpushare is not installed in this cluster", "run ./install.sh"),
    "no right": (FORBIDDEN, 'user "jane" may not list gpunodes.gpushare.io', "--clusterrole=gpushare-viewer --user=jane"),
    "no server": (
        "The connection to the server localhost:8080 was refused - did you specify the right host or port?",
        "the API server cannot be reached",
        "choose another cluster with --context",
    ),
    "no login": ("error: You must be logged in to the server (Unauthorized)", "the API server does not accept", "log in again"),
    "no login program": (
        "Unable to connect to the server: getting credentials: exec: executable aws not found",
        "kubectl gets no credentials from the program that the kubeconfig names (exec: executable aws not found)",
        "log in with it, or install it",
    ),
    "no context": ('error: context "nope" does not exist', 'context "nope" does not exist', ""),
}  # fmt: skip


def test_every_verb_is_covered() -> None:
    assert {name.partition(" ")[0] for name in LINES} | OFFLINE | ELSEWHERE == set(cli.VERBS)


def complaint(plugin: Plugin, line: str, **variables: str) -> str:
    """Return the single line that a failed command prints."""
    ended = plugin(*line.split(), **variables)
    assert (ended.code, ended.out) == (1, ""), ended.err
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1, ended.err
    return ended.err


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("case", SAID)
def test_cluster_error_has_a_remedy(plugin: Plugin, fake_kubectl: Callable[[str], str], name: str, case: str) -> None:
    said, sentence, remedy = SAID[case]
    program = fake_kubectl(f"case \"$*\" in *'config view'*) exit 0;; esac\ncat >&2 <<'END'\n{said}\nEND\nexit 1")
    message = complaint(plugin, LINES[name], KUBECTL_PATH=program)
    assert sentence in message
    assert remedy in message


@pytest.mark.parametrize("name", LINES)
def test_every_verb_reports_a_missing_kubectl(plugin: Plugin, name: str) -> None:
    message = complaint(plugin, LINES[name], KUBECTL_PATH="/nonexistent/kubectl")
    assert "install kubectl and put it on PATH" in message


@pytest.mark.parametrize("name", LINES)
def test_every_verb_distinguishes_another_api_version_from_none(
    plugin: Plugin, fake_kubectl: Callable[[str], str], name: str
) -> None:
    program = fake_kubectl(f"""
        case "$*" in
        *'config view'*) ;;
        *'/apis/gpushare.io '*|*/apis/gpushare.io) echo '{{"kind": "APIGroup", "versions": [{{"version": "v1beta2"}}]}}';;
        *gpunodes*) echo '{MISSING}' >&2; exit 1;;
        *'/pods/'*) echo '{{"kind": "Pod", "metadata": {{"name": "x", "namespace": "ml"}}}}';;
        *) echo '{{"kind": "List", "items": []}}';;
        esac
    """)
    message = complaint(plugin, LINES[name], KUBECTL_PATH=program)
    assert "this plugin reads gpushare.io/v1alpha1, and the cluster's gpushare serves v1beta2" in message
    assert "install the plugin and gpushare in the same version" in message


@pytest.mark.parametrize("name", FROM_FILES)
def test_missing_or_foreign_file_is_an_error(plugin: Plugin, name: str) -> None:
    message = complaint(plugin, f"{LINES[name]} --from /nonexistent")
    assert "/nonexistent cannot be read" in message
    assert "kubectl get gpunodes" in message
    message = complaint(plugin, f"{LINES[name]} --from {ROOT / 'pyproject.toml'}")
    assert "pyproject.toml" in message


@pytest.mark.parametrize("name", [name for name in LINES if name not in FROM_FILES])
def test_option_that_needs_a_cluster_is_an_error_with_files(plugin: Plugin, saved: Path, name: str) -> None:
    ended = plugin(*LINES[name].split(), "--from", saved)
    assert (ended.code, ended.out) == (1, "")
    assert "needs a cluster: files of --from" in ended.err


@pytest.mark.parametrize("name", LINES)
def test_the_flags_that_choose_cluster_and_user_reach_kubectl(
    plugin: Plugin, fake_kubectl: Callable[[str], str], name: str
) -> None:
    program = fake_kubectl('case "$*" in *\'config view\'*) exit 0;; esac\necho "error: $*" >&2; exit 1')
    flags = "--context=c --kubeconfig=k --cluster=d --user=u --as=jane --as-group=a --as-group=b --request-timeout=3s"
    assert flags in complaint(plugin, f"{LINES[name]} {flags}", KUBECTL_PATH=program)


def test_error_is_one_line_without_control_characters(plugin: Plugin, fake_kubectl: Callable[[str], str]) -> None:
    program = fake_kubectl(r"printf 'error: one\n\033[2Jtwo\n' >&2; exit 1")
    assert complaint(plugin, "top", KUBECTL_PATH=program) == "error: one �[2Jtwo\n"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "top -o jsonpath={.items}",
            'invalid --output "jsonpath={.items}": must be table, wide, json, yaml, csv or name',
        ),
        ("fit --request 1 -o wide", 'invalid --output "wide": must be json or yaml'),
        (
            "config show -o name",
            'invalid --output "name", as there is no list of objects whose names it could print: must be table, json or '
            "yaml",
        ),
    ],
)
def test_unknown_format_is_an_error_that_lists_the_known_ones(plugin: Plugin, line: str, sentence: str) -> None:
    ended = plugin(*line.split())
    assert (ended.code, ended.out, ended.err.splitlines()[0]) == (1, "", f"error: {sentence}")


@pytest.mark.parametrize("name", LINES)
def test_password_prompt_of_kubectl_is_an_error(plugin: Plugin, fake_kubectl: Callable[[str], str], name: str) -> None:
    program = fake_kubectl(
        "case \"$*\" in *'config view'*) exit 0;; esac\nprintf 'Please enter Username: '; echo 'error: EOF' >&2; exit 1"
    )
    message = complaint(plugin, LINES[name], KUBECTL_PATH=program)
    assert "kubectl has no credentials for this cluster" in message
    assert "log in first" in message


@pytest.mark.parametrize("verb", ["cordon", "uncordon"])
def test_missing_write_right_does_not_suggest_the_viewer_role(
    plugin: Plugin, fake_kubectl: Callable[[str], str], tmp_path: Path, verb: str
) -> None:
    forbidden = FORBIDDEN.replace("cannot list", "cannot patch")
    program = fake_kubectl(f"[ $1 = get ] && exec cat {tmp_path}/list\necho '{forbidden}' >&2; exit 1")
    node = sample.nodes()[0 if verb == "cordon" else 1]
    (tmp_path / "list").write_text(json.dumps({"kind": "List", "items": [codec.to_document(node)]}))
    message = complaint(plugin, f"{verb} gpu {node.name}/2", KUBECTL_PATH=program)
    assert message.endswith('ask an admin for a role that allows "patch" on "gpunodes"\n')
    assert "viewer" not in message
