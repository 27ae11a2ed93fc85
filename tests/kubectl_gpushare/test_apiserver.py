"""The plugin against a real API server, found and called by a real kubectl."""

from __future__ import annotations

import os
import pty
import select
import struct
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from gpushare import contract
from tests.config import manifests
from tests.config.installation import apply
from tests.kubectl_gpushare import sample
from tests.kubectl_gpushare.conftest import LABEL, PATIENCE, ROOT, SECONDS, Kubectl

pytestmark = pytest.mark.apiserver


def test_kubectl_finds_the_plugin_and_top_shows_the_ledger(kubectl: Kubectl, namespace: str) -> None:
    ended = kubectl.run("gpushare", "top", "-l", LABEL)
    assert ended.code == 0
    assert ended.out == (Path(__file__).parent / "golden" / "top-gpus-pipe.txt").read_text()


def test_a_selector_that_matches_nothing_finds_nothing(kubectl: Kubectl, namespace: str) -> None:
    ended = kubectl("gpushare", "top", "nodes", "-l", "plugin-test=no")
    assert (ended.code, ended.out, ended.err) == (0, "", "No nodes found.\n")


def test_a_saved_list_gives_the_same_view(kubectl: Kubectl, namespace: str, tmp_path: Path) -> None:
    for output in ("json", "yaml"):
        path = tmp_path / f"saved.{output}"
        path.write_text(kubectl("get", "gpunodes", "-l", LABEL, "-o", output).out)
        assert kubectl("gpushare", "top", "--from", str(path)).out == kubectl("gpushare", "top", "-l", LABEL).out


def test_describe_reads_one_node_and_its_pods(kubectl: Kubectl, namespace: str) -> None:
    ended = kubectl("gpushare", "describe", "gpu", "gpu-1/0")
    assert (ended.code, ended.err) == (0, "")
    assert "ml/trainer" in ended.out


def test_a_gated_pod_is_explained_by_its_own_sentence(kubectl: Kubectl, namespace: str) -> None:
    out = kubectl("gpushare", "describe", "pod", "waiting", "-n", namespace).out
    assert f"Reason:       {sample.WAITING}\n" in out
    assert "none of the annotations" in kubectl("gpushare", "describe", "pod", "nginx", "-n", namespace).out


def test_missing_pod_is_an_error(kubectl: Kubectl, namespace: str) -> None:
    ended = kubectl("gpushare", "describe", "pod", "nobody", "-n", namespace)
    assert (ended.code, ended.err) == (1, f'error: pod "nobody" not found in namespace "{namespace}"\n')


def test_the_namespace_is_the_context_s(kubectl: Kubectl, namespace: str) -> None:
    assert kubectl("gpushare", "describe", "pods").err == "No pods that share GPUs found in default namespace.\n"


def test_missing_right_is_named(kubectl: Kubectl, namespace: str) -> None:
    ended = kubectl("gpushare", "top", "--as", "jane")
    assert ended.code == 1
    assert ended.err.startswith(
        'error: user "jane" may not list gpunodes.gpushare.io at the cluster scope: ask an admin'
    )


def test_a_viewer_of_gpunodes_needs_no_right_on_pods(kubectl: Kubectl, namespace: str) -> None:
    with kubectl.allowed("viewer", "gpushare-viewer"):
        ended = kubectl("gpushare", "top", "--as=viewer")
        assert ended.code == 0
        assert sum(line.startswith("warning: ") and "may not" in line for line in ended.err.splitlines()) == 1
        for what in ("nodes that are cordoned", "--clusterrole=gpushare-usage-viewer --user=viewer"):
            assert what in ended.err
        ended = kubectl("gpushare", "top", "-l", LABEL, "--as=viewer")
        assert (ended.code, ended.out) == (1, "")
        assert ended.err.startswith('error: -l goes by the labels of Nodes, and user "viewer" may not list nodes')
        ended = kubectl("gpushare", "describe", "node", "gpu-1", "--as=viewer")
        assert (ended.code, ended.err) == (0, "")
        assert 'Not Shown:\n  pods\' states and times: user "viewer" may not list pods' in ended.out
        ended = kubectl("gpushare", "fit", "--request", "0.1", "--memory", "1Gi", "--as=viewer")
        assert (ended.code, ended.err) == (0, "")
        assert 'CPU and memory: user "viewer" may not list nodes' in ended.out


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--context=nope",), 'context "nope" does not exist'),
        (("--kubeconfig=/nonexistent",), "/nonexistent: no such file"),
        (("-l", "a b c"), "the API server says BadRequest"),
    ],
    ids=str,
)
def test_kubectls_error_is_one_sentence(
    kubectl: Kubectl, namespace: str, flags: tuple[str, ...], sentence: str
) -> None:
    ended = kubectl("gpushare", "top", *flags)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("error: ")
    assert sentence in ended.err


def test_kubectl_completes_names_from_the_cluster(kubectl: Kubectl, namespace: str) -> None:
    def complete(*words: str) -> list[str]:
        return kubectl("__complete", "gpushare", *words).out.splitlines()

    assert complete("describe", PATIENCE, "node", "gpu-1") == ["gpu-1", "gpu-10", ":4"]
    assert complete("describe", PATIENCE, "gpu", "gpu-1/0") == ["gpu-1/0\tA100-SXM4-80GB free 0.25+20Gi", ":4"]
    assert complete("describe", PATIENCE, "pod", "-n", namespace, "") == ["waiting", ":4"]
    assert namespace in complete("describe", PATIENCE, "pod", "-n", "")
    assert "top" in complete("to")[0]


def test_pods_are_shown_with_what_they_wait_for(kubectl: Kubectl, namespace: str) -> None:
    ended = kubectl("gpushare", "top", "pods", "-n", namespace, "-o", "wide", "--no-usage")
    assert ended.code == 0
    line = next(line for line in ended.out.splitlines() if line.startswith("waiting"))
    assert sample.WAITING in line


def test_top_says_when_no_agent_can_be_asked(kubectl: Kubectl, namespace: str) -> None:
    ended = kubectl("gpushare", "top", "-l", LABEL)
    assert ended.code == 0
    assert "used figures: no agent runs there" in ended.err
    assert "used figures" not in kubectl("gpushare", "top", "-l", LABEL, "--no-usage").err


def test_why_and_fit_read_the_cluster_and_change_nothing(kubectl: Kubectl, namespace: str) -> None:
    path = f"{contract.GPUNODE_PATH}?labelSelector={LABEL}"
    before = kubectl.access.read(path)["items"]
    ended = kubectl("gpushare", "why", "waiting", "-n", namespace)
    assert ended.code == 0
    assert "has the taint node.kubernetes.io/not-ready:NoSchedule" in ended.out
    ended = kubectl("gpushare", "fit", "--request", "0.5")
    assert (ended.code, ended.err) == (2, "")
    assert "nodes that cannot take the pod" in ended.out
    assert kubectl("gpushare", "defrag", "-n", namespace).code in {0, 2}
    assert kubectl.access.read(path)["items"] == before


def test_fit_respects_resource_quotas(kubectl: Kubectl, namespace: str) -> None:
    spec = {"hard": {"requests.gpushare.io/gpu-percent": "40"}}
    kubectl.access.create(
        f"/api/v1/namespaces/{namespace}/resourcequotas", {"metadata": {"name": "gpus"}, "spec": spec}
    )
    ended = kubectl("gpushare", "fit", "--request", "0.5", "-n", namespace)
    assert (ended.code, ended.err) == (2, "")
    refused = "the ResourceQuota gpus of its namespace leaves 40 of gpushare.io/gpu-percent, 50 are requested"
    assert refused in " ".join(ended.out.split())
    assert "Would Fit" not in ended.out
    assert "ResourceQuota" not in kubectl("gpushare", "fit", "--request", "0.4", "-n", namespace).out


def test_a_gpu_is_cordoned_and_uncordoned(kubectl: Kubectl, namespace: str) -> None:
    try:
        ended = kubectl("gpushare", "cordon", "gpu", "gpu-1/3")
        assert (ended.code, ended.out, ended.err) == (0, "gpu-1/3 cordoned: 1 pod stays on it\n", "")
        assert "Cordoned" in kubectl("gpushare", "top", "gpus", "gpu-1/3", "--no-usage").out
        assert kubectl("gpushare", "cordon", "gpu", "gpu-1/3").out == "gpu-1/3 already cordoned: 1 pod stays on it\n"
    finally:
        assert kubectl("gpushare", "uncordon", "gpu", "gpu-1/3").out == "gpu-1/3 uncordoned\n"
    assert "Cordoned" not in kubectl("gpushare", "top", "gpus", "gpu-1/3", "--no-usage").out


def test_cordons_of_a_killed_defrag_are_reported_and_removed(kubectl: Kubectl, namespace: str) -> None:
    left, ours = sample.uuid("gpu-1", 3), sample.uuid("gpu-1", 0)
    path = f"{contract.GPUNODE_PATH}/gpu-1"
    labels = {f"defrag.gpushare.io/{left}": "1f2e3d4c.20260301T120000Z"}
    kubectl.access.patch(path, {"metadata": {"labels": labels}, "spec": {"cordoned": [left, ours]}})
    size = ("--request", "1", "--gpus", "2")
    try:
        assert "gpu-1/3 was left cordoned" in kubectl("gpushare", "defrag", *size).out
        ended = kubectl("gpushare", "defrag", *size, "--apply")
        assert (ended.code, ended.err.splitlines()[0]) == (
            2,
            "uncordoned 1 GPU of gpu-1: a defrag --apply that did not come to its end had left them so",
        )
        gpunode = kubectl.access.read(path)
        assert gpunode["spec"]["cordoned"] == [ours]
        assert gpunode["metadata"]["labels"] == dict([LABEL.split("=")])
    finally:
        kubectl.cordon("gpu-1")


def test_viewer_cannot_cordon(kubectl: Kubectl, namespace: str) -> None:
    with kubectl.allowed("looker", "gpushare-viewer"):
        ended = kubectl("gpushare", "cordon", "gpu", "gpu-1/3", "--as=looker")
        assert (ended.code, ended.out) == (1, "")
        assert ended.err.startswith('error: user "looker" may not patch gpunodes.gpushare.io')
        assert ended.err.endswith('ask an admin for a role that allows "patch" on "gpunodes"\n')


def test_watch_in_a_pipe_prints_again_after_a_change(kubectl: Kubectl, namespace: str) -> None:
    command = ["kubectl", "gpushare", "top", "nodes", "gpu-1", "-l", LABEL, "-w", "--no-headers"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env=kubectl.environment, stdin=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdout is not None
            assert "2.75/4" in _until(process.stdout.fileno(), b"\n")
            kubectl.cordon("gpu-1", sample.uuid("gpu-1", 3))
            assert "Cordoned:1" in _until(process.stdout.fileno(), b"Cordoned:1")
        finally:
            kubectl.cordon("gpu-1")
            process.terminate()  # shells ignore SIGINT in background jobs, and so in tests
            try:
                assert process.wait(SECONDS) == 130
            finally:
                process.kill()


def test_watch_uses_the_alternate_screen_and_restores_the_terminal(kubectl: Kubectl, namespace: str) -> None:
    import fcntl
    import termios

    child, terminal = pty.fork()
    if child == 0:
        os.execvpe("kubectl", ["kubectl", "gpushare", "top", "-l", LABEL, "-w"], kubectl.environment)  # noqa: S606
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    try:
        shown = _until(terminal, b"TOTAL")
        assert "\x1b[?1049h\x1b[?25l" in shown
        assert "gpu-10/3" in shown
        os.write(terminal, b"q")
        assert _until(terminal, b"\x1b[?1049l")
    finally:
        _, status = os.waitpid(child, 0)
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0


def _until(descriptor: int, wanted: bytes) -> str:
    """Read from a descriptor until `wanted` appears, and return all of it."""
    data = b""
    until = time.monotonic() + SECONDS
    while wanted not in data:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, until - time.monotonic()))
        assert ready, f"{wanted!r} never came, but {data!r}"
        data += os.read(descriptor, 1 << 16)
    return data.decode()


def test_viewer_gets_notes_about_unknown_facts(kubectl: Kubectl, namespace: str) -> None:
    with kubectl.allowed("auditor", "gpushare-viewer"):
        ended = kubectl("gpushare", "audit", "gpu-1", "--as=auditor")
        assert (ended.code, ended.out) == (1, "not certain of 1 node\n")
        assert 'audits: user "auditor" may not list pods in the namespace "gpushare-system"' in ended.err
        ended = kubectl("gpushare", "rightsize", "-A", "--as=auditor")
        assert ended.code == 0
        assert "shares without anything to go by" in ended.out
        ended = kubectl("gpushare", "config", "show", "gpu-1", "--as=auditor")
        assert (ended.code, ended.err) == (0, "")
        assert 'configurations: user "auditor" may not get configmaps' in ended.out


def test_config_show_shows_active_and_requested_configuration(kubectl: Kubectl, namespace: str) -> None:
    apply(kubectl.access, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpushare-system"}}])
    node = "/api/v1/nodes/gpu-1"
    try:
        assert "there is no ConfigMap" in kubectl("gpushare", "config", "show", "gpu-1").out
        apply(kubectl.access, manifests.documents(ROOT / "config" / "samples" / "config" / "configmap.yaml"))
        kubectl.access.patch(node, {"metadata": {"labels": {"gpushare.io/config": "mps"}}})
        ended = kubectl("gpushare", "config", "show", "gpu-1")
        assert (ended.code, ended.err) == (0, "")
        assert "In Force:   default\nAsked For:  mps\nBecause:    the node's label gpushare.io/config\n" in ended.out
        assert "renameByDefault: true" in kubectl("gpushare", "config", "show", "time-slicing", "-o", "yaml").out
    finally:
        kubectl.access.patch(node, {"metadata": {"labels": {"gpushare.io/config": None}}})
        kubectl.access.delete("/api/v1/namespaces/gpushare-system/configmaps/gpushare-config")


def test_migrate_reads_what_runs_in_a_namespace(kubectl: Kubectl, namespace: str) -> None:
    first, *_ = (ROOT / "tests" / "kubectl_gpushare" / "migrate" / "before.yaml").read_text().split("---\n")
    deployment = yaml.safe_load(first)
    kubectl.access.create(f"/apis/apps/v1/namespaces/{namespace}/deployments", deployment)
    ended = kubectl("gpushare", "migrate", "-n", namespace)
    assert (ended.code, ended.err) == (0, "")
    changes = [line for line in ended.out.splitlines() if line[:1] in {"+", "-"}]
    assert changes[:2] == ["--- Deployment/web", "+++ Deployment/web"]
    assert sorted(line.split()[1] for line in changes if line.startswith("-  ")) == [
        "nvidia.com/gpu:",
        "nvidia.com/gpucores:",
        "nvidia.com/gpumem:",
    ]
