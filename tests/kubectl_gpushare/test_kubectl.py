"""kubectl's errors become sentences with a remedy. The texts are those of kubectl 1.36."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kubectl_gpushare import kubectl, plugin_errors
from tests.kubectl_gpushare.conftest import Plugin

FORBIDDEN = (
    'Error from server (Forbidden): gpunodes.gpushare.io is forbidden: User "jane" cannot list resource "gpunodes" '
    'in API group "gpushare.io" at the cluster scope'
)
FORBIDDEN_PODS = (
    'Error from server (Forbidden): pods is forbidden: User "jane" cannot list resource "pods" in API group "" '
    'in the namespace "ml"'
)
SAYINGS = {
    "not installed": (
        "Error from server (NotFound): the server could not find the requested resource",
        plugin_errors.NotInstalled,
        r"gpushare is not installed in this cluster .* run \./install\.sh",
    ),
    "forbidden": (
        FORBIDDEN,
        plugin_errors.KubectlForbidden,
        r'user "jane" may not list gpunodes\.gpushare\.io at the cluster scope: .*--clusterrole=gpushare-viewer --user=jane',
    ),
    "forbidden pods": (
        FORBIDDEN_PODS,
        plugin_errors.KubectlForbidden,
        r'user "jane" may not list pods in the namespace "ml": ask an admin for a role that allows "list" on "pods"',
    ),
    "not found": (
        'Error from server (NotFound): pods "x" not found',
        plugin_errors.KubectlNotFound,
        r'^pods "x" not found$',
    ),
    "credentials": (
        "error: You must be logged in to the server (Unauthorized)",
        plugin_errors.KubectlError,
        "does not accept the credentials: log in again",
    ),
    "refused": (
        "The connection to the server localhost:8080 was refused - did you specify the right host or port?",
        plugin_errors.KubectlError,
        r"cannot be reached: .*localhost:8080.*kubectl cluster-info",
    ),
    "no such host": (
        "Unable to connect to the server: dial tcp: lookup nope on 10.0.0.2:53: no such host",
        plugin_errors.KubectlError,
        r"cannot be reached: .*no such host",
    ),
    "bad request": (
        "Error from server (BadRequest): unable to parse requirement",
        plugin_errors.KubectlError,
        "^the API server says BadRequest: unable to parse requirement$",
    ),
    "no context": ('error: context "x" does not exist', plugin_errors.KubectlError, '^context "x" does not exist$'),
}


@pytest.mark.parametrize("name", SAYINGS)
def test_kubectls_error_becomes_a_sentence_with_a_remedy(name: str) -> None:
    said, kind, sentence = SAYINGS[name]
    with pytest.raises(kind, match=sentence):
        raise kubectl.explain(said)


def test_the_kubectl_that_called_us_is_used() -> None:
    assert kubectl.Kubectl.from_environment((), {"KUBECTL_PATH": "/opt/kubectl"}).program == "/opt/kubectl"
    assert kubectl.Kubectl.from_environment((), {}).program == "kubectl"


def test_without_kubectl_the_error_says_what_to_do(plugin: Plugin) -> None:
    ended = plugin("top", KUBECTL_PATH="/nonexistent/kubectl")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == (
        "error: /nonexistent/kubectl cannot be run (No such file or directory): install kubectl and put it on PATH, "
        "or read saved objects with --from FILE\n"
    )


def test_flags_are_passed_on_to_kubectl(plugin: Plugin, fake_kubectl: Callable[[str], str]) -> None:
    program = fake_kubectl('case "$3" in */nodes*) exit 0;; esac; echo "error: $*" >&2; exit 1')
    flags = ["--context=c", "--kubeconfig", "k", "--as=jane", "--as-group=a", "--as-group=b", "--request-timeout=3s"]
    assert plugin("top", "-l", "a=b", *flags, KUBECTL_PATH=program).err == (
        "error: get --raw /apis/gpushare.io/v1alpha1/gpunodes "
        "--context=c --kubeconfig=k --as=jane --as-group=a --as-group=b --request-timeout=3s\n"
    )


def test_last_value_of_a_flag_counts_and_empty_values_are_dropped(
    plugin: Plugin, fake_kubectl: Callable[[str], str]
) -> None:
    program = fake_kubectl('echo "error: $*" >&2; exit 1')
    words = ["top", "pods", "-A", "--context=one", "--context", "two", "--kubeconfig", ""]
    path = "/apis/gpushare.io/v1alpha1/gpunodes"
    assert plugin(*words, KUBECTL_PATH=program).err == f"error: get --raw {path} --context=two\n"


def test_top_reads_each_list_once(plugin: Plugin, fake_kubectl: Callable[[str], str], tmp_path: Path) -> None:
    program = fake_kubectl(f'echo "$3" >> {tmp_path}/log; echo \'{{"kind":"List","items":[]}}\'')
    assert plugin("top", KUBECTL_PATH=program).code == 0
    paths = (tmp_path / "log").read_text().splitlines()
    assert sorted(paths) == sorted(set(paths))
    assert "/apis/gpushare.io/v1alpha1/gpunodes" in paths


def test_login_prompt_reaches_the_user(plugin: Plugin, fake_kubectl: Callable[[str], str]) -> None:
    # only the first call has to log in
    asks = 'case "$3" in */gpunodes*) echo "Open https://login.example/device" >&2;; esac'
    program = fake_kubectl(asks + '; echo \'{"kind":"List","items":[]}\'')
    ended = plugin("top", KUBECTL_PATH=program)
    assert ended.code == 0
    assert ended.err.startswith("Open https://login.example/device\nNo GPUs found.\n")


def test_truncated_answer_is_an_error(plugin: Plugin, fake_kubectl: Callable[[str], str]) -> None:
    program = fake_kubectl("printf '{\"items\":[{'")
    ended = plugin("top", KUBECTL_PATH=program)
    assert ended.code == 1
    assert "kubectl's answer is not JSON" in ended.err


def test_an_answer_without_the_object_is_an_error(plugin: Plugin, fake_kubectl: Callable[[str], str]) -> None:
    ended = plugin("describe", "pod", "trainer", "-n", "ml", KUBECTL_PATH=fake_kubectl(""))
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "error: kubectl's answer is empty where one object was asked for\n"


def test_silent_failure_of_kubectl_is_an_error(plugin: Plugin, fake_kubectl: Callable[[str], str]) -> None:
    ended = plugin("top", KUBECTL_PATH=fake_kubectl("exit 7"))
    assert (ended.code, ended.out) == (1, "")
    assert "kubectl ended with code 7" in ended.err


def test_other_api_version_is_distinguished_from_none(plugin: Plugin, fake_kubectl: Callable[[str], str]) -> None:
    missing = "Error from server (NotFound): the server could not find the requested resource"
    program = fake_kubectl(f"""
        case "$3" in
        /apis/gpushare.io) echo '{{"kind": "APIGroup", "versions": [{{"version": "v1beta2"}}]}}';;
        *) echo '{missing}' >&2; exit 1;;
        esac
    """)
    ended = plugin("top", KUBECTL_PATH=program)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(
        "error: this plugin reads gpushare.io/v1alpha1, and the cluster's gpushare serves v1beta2"
    )


@pytest.mark.parametrize(
    ("status", "body", "error", "sentence"),
    [
        (403, json.dumps({"reason": "Forbidden", "message": FORBIDDEN.partition(": ")[2]}), plugin_errors.KubectlForbidden, 'user "jane" may not list'),
        (404, "404 page not found", plugin_errors.NotInstalled, "is not installed"),
        (502, "dial tcp 10.0.0.1:6443: connect: refused", plugin_errors.KubectlError, "cannot be reached: .* refused"),
        (500, '{"reason": "InternalError", "message": "failed calling webhook"}', plugin_errors.KubectlError, "says InternalError: failed calling webhook"),
    ],
)  # fmt: skip
def test_rejection_through_the_proxy_becomes_the_same_sentence(
    status: int, body: str, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        raise kubectl.explain(kubectl.refusal(status, body))


@pytest.mark.parametrize(
    ("flag", "seconds"),
    [("--request-timeout=1m30s", 90), ("--request-timeout=500ms", 0.5), ("--request-timeout=7", 7), ("--request-timeout=0", None), ("--context=1s", None)],
)  # fmt: skip
def test_time_limit_of_a_request_is_kept_by_the_proxy(flag: str, seconds: float | None) -> None:
    assert kubectl.timeout_seconds(("--as=jane", flag)) == seconds


def test_without_a_directory_for_the_socket_the_error_says_what_to_set(
    plugin: Plugin, fake_kubectl: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:  # pytest makes files there too
        patch.setattr("tempfile.tempdir", "/nonexistent")
        ended = plugin("check", KUBECTL_PATH=fake_kubectl("echo '{}'"))
    assert ended.code == 1
    assert ended.err.startswith("error: no directory for the socket of kubectl proxy can be created (")
    assert ended.err.endswith("): set TMPDIR to a writable one\n")
