"""`check`: its output and exit code, on files and on a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from gpushare import preflight
from gpushare.preflight.finding import Finding, Severity
from kubectl_gpushare.commands import check
from kubectl_gpushare.output import layout
from kubectl_gpushare.output.terminal import Terminal
from lab.access import Access
from tests.config import manifests
from tests.config.installation import apply, withdraw
from tests.gpushare.preflight import sound
from tests.kubectl_gpushare.conftest import ROOT, Kubectl, Plugin
from tests.kubectl_gpushare.test_views import PIPE, SMALL, compare


def findings() -> tuple[Finding, ...]:
    """Return the findings for a node with a taint that the agent does not tolerate, an old kernel and NVIDIA's device
    plugin.
    """

    def broken(facts: dict[str, object]) -> None:
        objects = facts["objects"]
        assert isinstance(objects, dict)
        taint = {"key": "sku", "value": "gpu", "effect": "NoSchedule"}
        objects["Node"] += (sound.node("gpu-3", taints=(taint,), kernelVersion="4.18.0-553"),)
        operators = {"nvidia.com/gpu.present": "true"}
        objects["DaemonSet"] += (
            sound.daemonset("nvidia-device-plugin-daemonset", "gpu-operator", nodeSelector=operators),
        )
        objects["ResourceQuota"] = (
            sound.named("ResourceQuota", "gcp", "kube-system", spec={"scopeSelector": {"matchExpressions": [
                {"scopeName": "PriorityClass", "operator": "In", "values": ["system-node-critical"]}]}}),
        )  # fmt: skip
        del objects["DeviceClass"]
        facts["unread"] = {"DeviceClass": 'user "jane" may not list deviceclasses.resource.k8s.io'}

    return preflight.check(sound.cluster_facts(broken, installing=True))


@pytest.mark.parametrize(("name", "place"), [("check", PIPE), ("check-80", SMALL)])
def test_page_equals_the_golden_file(name: str, place: Terminal) -> None:
    lines = [*layout.page_lines(check.page(findings(), all_of_them=False), place), "", check.sentence(findings())]
    compare(name, lines)


def test_wide_lists_passed_checks() -> None:
    compare("check-wide", layout.page_lines(check.page(findings(), all_of_them=True), PIPE)[-20:])


def test_commands_are_never_wrapped() -> None:
    lines = layout.page_lines(check.page(findings(), all_of_them=False), Terminal(columns=40))
    commands = [line for finding in findings() for command in finding.commands for line in command.splitlines()]
    assert len(commands) >= 5
    assert {f"     {command}" for command in commands} <= set(lines)


def test_document_keeps_its_schema() -> None:
    document = check.document(findings())
    items = list(document["items"])
    assert (document["kind"], document["summary"]) == ("CheckList", check.sentence(findings()))
    assert {tuple(item) for item in items} == {("rule", "severity", "subjects", "found", "why", "remedy", "commands")}
    assert len(items) == len(findings())


def test_names_are_unique_and_only_of_warnings_and_blocking_findings() -> None:
    names = list(check.names(findings()))
    assert len(names) == len(set(names))
    assert {"node/gpu-3", "namespace/gpushare-system"} <= set(names)
    whole = Finding(Severity.BLOCKING, "x", rule="kubernetes-version", why="y")
    assert list(check.names([whole, Finding(Severity.INFO, "x", ("node/a",))])) == ["precondition/kubernetes-version"]


def save(path: Path, *objects: object) -> Path:
    path.write_text(json.dumps({"kind": "List", "items": objects}))
    return path


@pytest.fixture
def cluster_file(tmp_path: Path) -> Path:
    """Save a cluster without problems."""
    crd = {"kind": "CustomResourceDefinition", "metadata": {"name": "x"}, "spec": {"group": "example.org"}}
    objects = sound.objects(installing=True)
    version = tmp_path / "version.yaml"
    version.write_text(yaml.safe_dump({"clientVersion": {}, "serverVersion": {"gitVersion": "v1.36.2"}}))
    return save(tmp_path / "cluster.json", *(manifest for some in objects.values() for manifest in some), crd)


def test_saved_objects_are_checked_and_missing_kinds_reported(
    plugin: Plugin, cluster_file: Path, tmp_path: Path
) -> None:
    ended = plugin(
        "check", "--before-install", "--from", cluster_file, "--from", tmp_path / "version.yaml", "-o", "json"
    )
    items = {item["rule"]: item for item in json.loads(ended.out)["items"]}
    assert items["kubernetes-version"]["severity"] == "Ok"
    assert items["gpu-nodes-labelled"]["severity"] == "Ok"
    assert items["gpu-operator"]["severity"] == "Ok"  # there are CRDs, but not NVIDIA's
    assert items["gpu-owner"]["severity"] == "Unknown"
    wanted = "not known: no daemonsets were saved: add --from FILE with what `kubectl get daemonsets -A -o yaml` prints"
    assert items["gpu-owner"]["found"] == wanted
    assert ended.code == 1


@pytest.mark.parametrize(
    ("taints", "flags", "code"),
    [
        ((), (), 1),  # some facts are unknown
        ((), ("--fail-on", "blocking"), 0),
        ((), ("--fail-on", "warning"), 1),
        (({"key": "a", "effect": "NoSchedule"},), (), 2),
        (({"key": "a", "effect": "NoSchedule"},), ("--fail-on", "blocking"), 2),
    ],
)  # fmt: skip
def test_worst_finding_decides_the_exit_code(
    plugin: Plugin, tmp_path: Path, taints: tuple[dict[str, str], ...], flags: tuple[str, ...], code: int
) -> None:
    path = save(tmp_path / "nodes.json", sound.node("gpu-1", taints=taints))
    assert plugin("check", "--before-install", "--from", path, *flags).code == code


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("just words", "has something in it that is not a Kubernetes object: just words"),
        ("{", "is not JSON as kubectl prints it"),
        ("a: [", "is neither JSON nor YAML"),
    ],
)
def test_invalid_file_is_an_error(plugin: Plugin, tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    for flag in ("--from", "-f"):
        ended = plugin("check", flag, path, *(() if flag == "--from" else ("--from", save(tmp_path / "x.json"))))
        assert (ended.code, ended.out) == (1, "")
        assert sentence in ended.err


def test_manifests_to_be_installed_are_checked(plugin: Plugin, tmp_path: Path) -> None:
    """The agent will have the tolerations of these manifests."""
    taint = {"key": "sku", "value": "gpu", "effect": "NoSchedule"}
    path = save(tmp_path / "nodes.json", sound.node("gpu-1", taints=(taint,)))
    agent, webhook, _ = sound.ours()
    for tolerated, code in ((False, 2), (True, 0)):
        if tolerated:
            agent["spec"]["template"]["spec"]["tolerations"].append({"key": "sku", "operator": "Exists"})
        yaml_path = tmp_path / "manifests.yaml"
        yaml_path.write_text(yaml.safe_dump_all([agent, webhook]))
        flags = ("check", "--before-install", "--from", path, "-f", yaml_path, "--fail-on", "blocking")
        assert plugin(*flags).code == code


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("echo 'The connection to the server x:1 was refused' >&2; exit 1", "the API server cannot be reached"),
        (
            "echo 'error: You must be logged in to the server (Unauthorized)' >&2; exit 1",
            "the API server does not accept",
        ),
        ("printf 'Please enter Username: '; echo 'error: EOF' >&2; exit 1", "kubectl has no credentials"),
        ("echo '<html>a proxy</html>'", "kubectl's answer is not JSON"),
        ('echo "error: $*" >&2; exit 1', "get --raw /version --context=c --as=jane"),
        ('[ "$1" = get ] && echo "{}" && exit; echo "error: $*" >&2; exit 1', "proxy --unix-socket="),
    ],
)
def test_unreachable_cluster_is_an_error(
    plugin: Plugin, fake_kubectl: Callable[[str], str], script: str, sentence: str
) -> None:
    ended = plugin("check", "--context=c", "--as=jane", KUBECTL_PATH=fake_kubectl(script))
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"error: {sentence}")
    assert ended.err.count("\n") == 1
    assert "install kubectl and put it on PATH" in plugin("check", KUBECTL_PATH="/nonexistent/kubectl").err


@pytest.fixture(scope="module")
def broken_cluster(api_server: Access) -> Iterator[Access]:
    """Create a cluster with every known problem: a plugin, an operator, another sharer, labels, taints, a standard."""
    group = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "clusterpolicies.nvidia.com"}}  # fmt: skip
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    group["spec"] = {  # type: ignore[assignment]
        "group": "nvidia.com",
        "scope": "Cluster",
        "names": {"kind": "ClusterPolicy", "plural": "clusterpolicies"},
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
    }
    policy = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}}
    policy |= {"spec": {"cdi": {"enabled": True}}, "status": {"state": "notReady"}}  # type: ignore[dict-item]
    labels = {"nvidia.com/gpu.present": "true", "check": "yes"}
    machine = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "check-1", "labels": labels}}
    machine |= {"spec": {"taints": [{"key": "sku", "value": "gpu", "effect": "NoSchedule"}]}}  # type: ignore[dict-item]
    pod = {"containers": [{"name": "p", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.17.0"}], "tolerations": [{"operator": "Exists"}]}  # fmt: skip
    template = {"metadata": {"labels": {"app": "p"}}, "spec": pod}
    plugin = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "nvidia-device-plugin", "namespace": "kube-system"}}  # fmt: skip
    plugin |= {"spec": {"selector": {"matchLabels": {"app": "p"}}, "template": template}}  # type: ignore[dict-item]
    sandbox = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "gvisor"}, "handler": "runsc"}  # fmt: skip
    made = (group, machine, plugin, sandbox)
    try:
        apply(api_server, made)
        api_server.wait_until_established("clusterpolicies.nvidia.com")
        apply(api_server, [policy])
        yield api_server
    finally:
        withdraw(api_server, made)


@pytest.mark.apiserver
def test_each_problem_of_a_real_cluster_is_found(broken_cluster: Access, kubectl: Kubectl) -> None:
    ended = kubectl("gpushare", "check", "--before-install", "-o", "json")
    assert ended.code == 2, ended.err
    items = {(item["rule"], item["severity"]): item for item in json.loads(ended.out)["items"]}
    assert items["gpu-owner", "Blocking"]["subjects"] == ["node/check-1"]
    assert items["node-taints", "Blocking"]["subjects"] == ["node/check-1"]
    assert items["gpu-operator", "Warning"]["found"] == "the GPU Operator is not ready: its state is notReady"
    assert "ignores the environment variable" in items["device-injection", "Blocking"]["found"]
    assert items["sandboxes", "Info"]["subjects"] == ["runtimeclass/gvisor"]
    assert items["kubernetes-version", "Ok"]
    assert items["installer-rights", "Ok"]


@pytest.mark.apiserver
def test_user_with_few_rights_gets_unknown_facts_reported(broken_cluster: Access, kubectl: Kubectl) -> None:
    ended = kubectl("gpushare", "check", "--before-install", "--as=nobody", "-o", "json")
    items = {item["rule"]: item for item in json.loads(ended.out)["items"]}
    assert items["node-taints"]["severity"] == "Unknown"
    assert items["node-taints"]["found"].startswith('not known: user "nobody" may not list nodes')
    assert items["installer-rights"]["severity"] == "Blocking"
    assert items["kubernetes-version"]["severity"] == "Ok"  # readable for all users
    # No check that needs a right to read counts as passed.
    assert {item["rule"] for item in items.values() if item["severity"] == "Ok"} <= {
        "kubernetes-version",
        "webhook-network",
        "kueue",
    }


@pytest.mark.apiserver
def test_check_starts_kubectl_twice(
    broken_cluster: Access, plugin: Plugin, fake_kubectl: Callable[[str], str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    program = fake_kubectl(f'echo "$1" >> {log}; exec {broken_cluster.kubectl_program} "$@"')
    kubeconfig = str(broken_cluster.kubeconfig)
    assert plugin("check", "--before-install", KUBECTL_PATH=program, KUBECONFIG=kubeconfig).code == 2
    assert log.read_text().split() == ["get", "proxy"]


@pytest.mark.apiserver
def test_a_trial_creates_nothing(broken_cluster: Access, kubectl: Kubectl) -> None:
    broken_cluster.ensure_default_service_account("default")
    ended = kubectl("gpushare", "check", "-o", "json")
    assert "installed" in {item["rule"] for item in json.loads(ended.out)["items"] if item["severity"] == "Blocking"}
    assert kubectl("get", "pods", "--namespace=default", "-o", "name").out == ""


def test_docs_list_every_precondition() -> None:
    from tests.docs import pages

    rows: dict[str, list[str]] = {}
    for heading in ("## The cluster", "## The nodes", "## The GPUs", "## Other software", "## gpushare itself"):
        rows |= pages.rows("docs/preconditions.md", heading)
    assert list(rows) == [entry.id for entry in preflight.RULES]
    assert {rule: cells[0] for rule, cells in rows.items()} == {entry.id: entry.wanted for entry in preflight.RULES}


def test_check_reads_the_manifests_of_this_repository(plugin: Plugin, tmp_path: Path) -> None:
    path = save(tmp_path / "nodes.json", sound.node("gpu-1"))
    files = [manifests.CONFIG / "base" / part for part in ("deviceplugin/daemonset.yaml", "webhook/deployment.yaml")]
    flags = [word for file in files for word in ("-f", file)]
    ended = plugin("check", "--before-install", "--from", path, "-o", "name", *flags)
    assert (ended.code, ended.out) == (2, "node/gpu-1\n")
    assert ROOT == manifests.REPOSITORY
