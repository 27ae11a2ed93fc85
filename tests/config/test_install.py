"""install.sh, run as a user runs it, against a separate API server."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from config import overlay
from lab import access
from tests.config import manifests
from tests.config.installation import APPLY, QUICKLY, SYSTEM, install, installed, ours


def test_help_names_every_flag() -> None:
    done = install("--help")
    assert done.returncode == 0
    source = (manifests.REPOSITORY / "install.sh").read_text()
    flags = set(re.findall(r"^  (--[a-z-]+)", done.stdout, re.MULTILINE))
    taken = set(re.findall(r"(--[a-z][a-z-]+)\b(?=[ |)]|=\*)", source.partition("parse() {")[2].partition("esac")[0]))
    assert flags == taken - {"--python"}  # used by the Makefile only


def test_an_unknown_flag_is_rejected() -> None:
    done = install("--remove")
    assert done.returncode == 1
    assert "error: unknown flag --remove" in done.stderr


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--uninstall", "--local"), "--uninstall and --local cannot be combined: choose one"),
        (("--uninstall", "--uninstall"), "--uninstall and --uninstall cannot be combined"),
        (("--delete-ledger",), "--delete-ledger has no effect without --uninstall"),
        (("--delete-ledger", "--dry-run"), "--delete-ledger has no effect without --uninstall"),
        (("--dry-run", "--local"), "--dry-run has no effect with --local"),
        (("--uninstall", "--registry=x/y"), "--registry has no effect with --uninstall"),
        (("--uninstall", "--component", "mig"), "--component has no effect with --uninstall"),
        (("--uninstall", "--without-component", "mig"), "--without-component has no effect with --uninstall"),
        (("--yes",), "--yes has no effect without --uninstall"),
        (("--uninstall", "--skip-preflight"), "--skip-preflight has no effect with --uninstall"),
        (("--uninstall", "--timeout=3"), "--timeout has no effect with --uninstall"),
        (("--component=mig", "--without-component", "mig"), "--component mig and --without-component mig cannot be combined"),
        (("--registry",), "--registry needs a value"),
        (("--component=",), "--component needs a value"),
        (("--registry", "--dry-run"), "--registry needs a value"),
        (("--timeout", "3m"), "--timeout 3m: write a number of seconds"),
        (("--uninstall", "dry-run"), "unknown flag dry-run"),
        (("--dryrun",), "unknown flag --dryrun"),
    ],
)  # fmt: skip
def test_contradictory_flags_are_rejected_before_any_change(
    flags: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    kubectl.chmod(0o755)
    done = install(*flags, path=str(tmp_path))
    assert done.returncode == 1
    assert f"error: {sentence}" in done.stderr
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("is_link", [True, False])
def test_install_finds_its_files_through_a_link_or_says_that_they_are_missing(tmp_path: Path, is_link: bool) -> None:
    program = manifests.REPOSITORY / "install.sh"
    link = tmp_path / "install.sh"
    link.symlink_to(program)
    command = [str(link), "--component"] if is_link else ["bash", "-s", "--", "--component"]
    done = subprocess.run(
        command, cwd=tmp_path, input=program.read_text(), capture_output=True, text=True, timeout=30, check=False
    )
    missing = (
        f"error: install.sh needs the files next to it, and {tmp_path} has no config/: run it in a checkout of gpushare"
    )
    assert (done.returncode, done.stderr) == (
        1, "error: --component needs a value: see ./install.sh --help\n" if is_link else f"{missing}\n"
    )  # fmt: skip


# A kubectl in a cluster with gpushare and the component `mps`, which fails on request and records its arguments.
KUBECTL = """#!/bin/bash
printf '%s\\n' "$*" >>"$CALLS"
[[ "$*" != $FAILS ]] || { echo 'the connection was refused' >&2; exit 1; }
case "$1 $2" in
  'get daemonset') echo mps ;;
  'create --dry-run=client') printf '%s\\n' daemonset.apps/gpushare-mps namespace/gpushare-system customresourcedefinition.apiextensions.k8s.io/gpunodes.gpushare.io ;;
esac
"""


@pytest.mark.parametrize(
    ("fails", "flags", "sentence"),
    [
        ("get daemonset*", (), "the installed components could not be read: name them with --component"),
        ("get daemonset*", ("--without-component", "mps"), "the installed components could not be read"),
        ("create --dry-run=client*/manifests.yaml*", ("--without-component", "mps"), "nothing was changed: the objects of"),
        ("get daemonset*", ("--component", "mps"), ""),
    ],
)  # fmt: skip
def test_components_that_cannot_be_read_or_listed_are_not_removed(
    tmp_path: Path, fails: str, flags: tuple[str, ...], sentence: str
) -> None:
    kubectl, calls = tmp_path / "kubectl", tmp_path / "calls"
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    done = install(*QUICKLY, *flags, path=str(tmp_path), more={"CALLS": str(calls), "FAILS": fails})
    assert done.returncode == bool(sentence)
    assert not sentence or f"error: {sentence}" in done.stderr
    words = [line.split()[0] for line in calls.read_text().splitlines()]
    assert "delete" not in words
    assert ("apply" in words) == (not sentence)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pods", "sentence"), [("pod/gpushare-borrow-x\\npod/gpushare-borrow-y\\n", "by 2 pods"), ("", "")]
)
def test_borrowing_is_not_removed_while_gpus_are_borrowed(tmp_path: Path, pods: str, sentence: str) -> None:
    kubectl, calls = tmp_path / "kubectl", tmp_path / "calls"
    borrows = KUBECTL.replace("echo mps", "echo borrow").replace("daemonset.apps/gpushare-mps", "$NAMES")
    borrows = borrows.replace("$NAMES", '$([[ "$*" != */old.yaml* ]] || echo namespace/gpushare-borrow)')
    kubectl.write_text(borrows.replace("esac", f"  'get pods') printf '{pods}' ;;\nesac"))
    kubectl.chmod(0o755)
    more = {"CALLS": str(calls), "FAILS": "apply *"}
    done = install(*QUICKLY, "--without-component", "borrow", path=str(tmp_path), more=more)
    assert ("error: nothing was changed: GPUs are still borrowed " + sentence in done.stderr) == bool(sentence)
    assert ("apply" in calls.read_text()) == (not sentence)


@pytest.mark.slow
def test_install_finds_all_tools_on_this_machine() -> None:
    done = install("--prerequisites")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


GPU_NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "gpu-1", "labels": {"nvidia.com/gpu.present": "true"}},
    "spec": {"taints": [{"key": "sku", "value": "gpu", "effect": "NoSchedule"}]},
}


@pytest.mark.apiserver
def test_a_dry_run_prints_the_steps_and_changes_nothing(
    own: access.Access, run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    dry_run = run("--dry-run")
    assert dry_run.returncode == 0, dry_run.stderr
    assert "customresourcedefinition.apiextensions.k8s.io/gpunodes.gpushare.io created (dry run)" in dry_run.stdout
    assert (
        "An installation would stop here, because of images. With --skip-preflight it would continue:" in dry_run.stdout
    )
    assert "policies, and an agent on each node with a GPU" in dry_run.stdout
    assert dry_run.stdout.endswith("\nNothing was changed.\n")
    assert ours(own) == []


@pytest.mark.apiserver
def test_blocking_problems_are_found_before_anything_is_applied(
    own: access.Access, run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    own.kubectl("create", "-f", "-", input=json.dumps(GPU_NODE))
    refused = run()
    assert refused.returncode == 1
    assert (
        "error: nothing was changed, because of images node-taints: see above, or add --skip-preflight"
        in refused.stderr
    )
    assert "Blocking: node-taints (node/gpu-1):\n  Found: 1 node with the taint sku=gpu:NoSchedule" in refused.stdout
    assert "make images PUSH=REGISTRY/PREFIX" in refused.stdout
    assert ours(own) == []
    own.kubectl("taint", "node", "gpu-1", "sku-")
    # Now the images have a name that nodes can pull and nothing blocks, so install.sh goes on until it waits for pods.
    installed(run("--registry", "127.0.0.1:5000/x", "--timeout", "1"))
    assert "127.0.0.1:5000/x/webhook:0.3.0" in own.kubectl("get", "deploy", "--namespace", SYSTEM, "-o", "yaml")


@pytest.mark.apiserver
def test_a_second_installation_keeps_fields_set_by_others(
    own: access.Access, run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    # As the previous release did it.
    own.kubectl(*APPLY, f"--kustomize={manifests.CONFIG / 'default'}")
    bundle = '[{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": "LS0tLS0="}]'
    for command in (
        ("patch", "mutatingwebhookconfiguration", "gpushare", "--type=json", f"--patch={bundle}", "--field-manager=webhook"),
        ("patch", "secret", "gpushare-webhook-certificate", f"-n={SYSTEM}", '--patch={"data": {"ca.crt": "eA=="}}', "--field-manager=webhook"),
        ("create", "configmap", "gpushare-config", f"-n={SYSTEM}", "--from-literal=default=version: v1", "--from-literal=mine=version: v1\nsharing: {}\n"),
        ("create", "-f", str(manifests.REPOSITORY / "tests/config/gpunode.yaml")),
    ):  # fmt: skip
        own.kubectl(*command)
    for _ in range(2):
        done = run(*QUICKLY)
        installed(done)
        assert "stay as they are" in done.stdout
    assert "LS0tLS0=" in own.kubectl("get", "mutatingwebhookconfiguration", "gpushare", "-o", "yaml")
    assert "ca.crt: eA==" in own.kubectl("get", "secret", "gpushare-webhook-certificate", f"-n={SYSTEM}", "-o", "yaml")
    written = ("get", "configmap", "gpushare-config", f"-n={SYSTEM}", "-o", "jsonpath={.data}")
    entries = own.kubectl(*written)

    dry_run = run("--uninstall", "--dry-run")
    assert dry_run.returncode == 0, dry_run.stderr
    assert "Nothing was changed." in dry_run.stdout
    assert f"Would save the configurations of nodes to {tmp_path}/gpushare-config-" in dry_run.stdout
    assert not list(tmp_path.glob("*.yaml"))
    assert '"gpushare-system" deleted (server dry run)' in dry_run.stdout
    assert len(ours(own)) > 10

    removed = run("--uninstall")
    assert removed.returncode == 0, removed.stderr
    assert "  the 2 configurations of nodes, in the ConfigMap gpushare-config\n" in removed.stdout
    (saved,) = tmp_path.glob("gpushare-config-*.yaml")
    assert f"  kubectl create --filename {saved}\n" in removed.stdout
    assert "The ledger stays" in removed.stdout
    assert ours(own) == []
    assert own.kubectl("get", "gpunodes", "--output=name").split() == ["gpunode.gpushare.io/gpu-1"]
    assert run("--uninstall").returncode == 0
    assert list(tmp_path.glob("*.yaml")) == [saved]
    own.kubectl("create", "namespace", SYSTEM)
    own.kubectl("create", f"--filename={saved}")
    assert own.kubectl(*written) == entries


@pytest.mark.apiserver
def test_a_second_installation_keeps_the_components(
    own: access.Access, run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    def names(kinds: str) -> list[str]:
        return own.kubectl("get", kinds, f"--namespace={SYSTEM}", "--output=name").split()

    def capabilities() -> str:
        return own.kubectl("get", "ds", "gpushare-agent", f"-n={SYSTEM}", "-o", "jsonpath={..capabilities.add}")

    first = run(*QUICKLY, "--component", "mig", "--component=mps", "--component", "defrag", "--component", "demand")
    installed(first)
    assert "that stay" not in first.stdout
    with_mig = capabilities()
    same = run("--dry-run", *QUICKLY, "--component=mig")
    assert same.returncode == 0, same.stderr
    assert "Components of the last installation that stay: mps defrag demand. " in same.stdout
    assert same.stdout.endswith("\nAll objects exist already, as in the manifests.\nNothing was changed.\n")
    dry_run = run("--dry-run", *QUICKLY, "--without-component", "mps").stdout
    assert "that stay: mig defrag demand. " in dry_run
    assert 'daemonset.apps "gpushare-mps" deleted' in dry_run
    assert "daemonset.apps/gpushare-mps" in names("ds")
    second = run(*QUICKLY, *[f"--without-component={name}" for name in ("mps", "mig", "demand")])
    installed(second)
    assert "that stay: defrag. " in second.stdout
    assert names("ds,cronjob") == ["daemonset.apps/gpushare-agent", "cronjob.batch/gpushare-defrag"]
    assert capabilities() != with_mig
    left = own.kubectl("get", "namespace,priorityclass,validatingadmissionpolicy", "--output=name")
    assert "gpushare-demand" not in left
    refused = run(*QUICKLY, "--without-component", "mps")
    assert refused.returncode == 1
    assert refused.stderr == "error: --without-component mps: the cluster has defrag\n"


CONFIG_MAP_OF_0_2_0 = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {
        "name": "gpushare-config",
        "namespace": SYSTEM,
        "labels": {"app.kubernetes.io/name": "gpushare", "app.kubernetes.io/part-of": "gpushare"},
    },
    "data": {
        "default": "version: v1\nsharing:\n  fractional:\n    resources:\n    - name: nvidia.com/gpu\n",
        "exclusive": "version: v1\n",
    },
}


@pytest.mark.apiserver
@pytest.mark.parametrize("before", ["--server-side", "--server-side=false"])
def test_an_upgrade_keeps_the_configurations(
    own: access.Access, run: Callable[..., subprocess.CompletedProcess[str]], before: str
) -> None:
    kustomize = f"--kustomize={manifests.CONFIG / 'default'}"

    def entries() -> dict[str, str]:
        found = json.loads(own.kubectl("get", "configmap", "gpushare-config", f"-n={SYSTEM}", "-o", "json"))
        data: dict[str, str] = found["data"]
        return data

    own.kubectl(*APPLY, before, kustomize)
    own.kubectl("apply", before, "--filename=-", input=json.dumps(CONFIG_MAP_OF_0_2_0))
    untouched = entries()
    own.kubectl("apply", "--server-side", "--force-conflicts", kustomize)
    assert entries() == untouched  # nothing is pruned from an unedited entry
    edited = untouched | {"default": "version: v1\n", "mine": "version: v1\n"}
    patch = json.dumps({"data": edited})
    own.kubectl("patch", "configmap", "gpushare-config", f"-n={SYSTEM}", f"--patch={patch}")
    own.kubectl("apply", "--server-side", "--force-conflicts", kustomize)
    assert entries() == edited
    own.kubectl(*APPLY, kustomize)
    assert entries() == edited
    installed(run(*QUICKLY, "--force-conflicts"))
    assert entries() == edited


@pytest.mark.apiserver
def test_a_field_of_another_manager_is_a_conflict_with_a_remedy(
    own: access.Access, run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    # The same objects as install.sh applies, without its checks.
    overlay.write(tmp_path / "overlay", overlay.Wanted())
    own.kubectl("apply", "--server-side", f"--kustomize={tmp_path / 'overlay'}")
    three = ("patch", "deployment", "gpushare-webhook", f"-n={SYSTEM}", '--patch={"spec": {"replicas": 3}}')
    own.kubectl(*three, "--field-manager=other-tool")
    refused = run(*QUICKLY)
    assert refused.returncode == 1
    assert 'conflict with "other-tool"' in refused.stderr
    assert "error: other-tool has changed the fields named above" in refused.stderr
    assert "add --force-conflicts to overwrite them" in refused.stderr
    assert run("--dry-run", *QUICKLY).stderr == refused.stderr
    gone = ("poddisruptionbudgets.policy", "gpushare-webhook", f"-n={SYSTEM}", "--ignore-not-found")
    own.kubectl("delete", *gone)
    forced = run("--dry-run", *QUICKLY, "--force-conflicts").stdout
    both = "  apps.v1.Deployment.gpushare-system.gpushare-webhook\n  policy.v1.PodDisruptionBudget.gpushare-system.gpushare-webhook"
    assert f"(GROUP.VERSION.KIND.NAMESPACE.NAME):\n{both}\nNothing was changed.\n" in forced
    assert "replicas: 3" in own.kubectl("get", "deployment", "gpushare-webhook", f"-n={SYSTEM}", "-o", "yaml")
    assert not own.kubectl("get", *gone)
    installed(run(*QUICKLY, "--force-conflicts"))
    assert "replicas: 2" in own.kubectl("get", "deployment", "gpushare-webhook", f"-n={SYSTEM}", "-o", "yaml")


@pytest.mark.apiserver
def test_a_user_without_rights_gets_the_missing_ones_listed(
    own: access.Access, run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    own.kubectl("create", "clusterrolebinding", "pf-viewer", "--clusterrole=view", "--user=jane")
    settings = json.loads(own.kubectl("config", "view", "--raw", "--output=json"))
    settings["users"][0]["user"]["as"] = "jane"
    jane = tmp_path / "kubeconfig"
    jane.write_text(json.dumps(settings))
    try:
        refused = install(path=str(own.kubectl_program.parent), kubeconfig=jane)
    finally:
        own.kubectl("delete", "clusterrolebinding", "pf-viewer")
    assert refused.returncode == 1
    assert "Blocking: installer-rights:\n  Found: you may not create namespaces, patch namespaces, " in refused.stdout
    # The role `view` cannot read Nodes, and facts that were not read must not count as met.
    assert 'Unknown: node-taints:\n  Found: not known: user "jane" may not list nodes' in refused.stdout
    assert "nothing was changed, because of images installer-rights" in refused.stderr or (
        "nothing was changed, because of installer-rights" in refused.stderr
    )
    assert ours(own) == []


@pytest.mark.apiserver
def test_install_refuses_to_change_a_helm_release(
    own: access.Access, run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    own.kubectl(*APPLY, f"--kustomize={manifests.CONFIG / 'default'}")
    labelled = ("label", "deployment", "gpushare-webhook", f"-n={SYSTEM}", "--overwrite")
    own.kubectl(*labelled, "app.kubernetes.io/managed-by=Helm")
    try:
        for flags in ((), ("--uninstall",)):
            refused = run(*flags)
            assert refused.returncode == 1
            assert "error: gpushare was installed into this cluster by Helm: use helm upgrade" in refused.stderr
    finally:
        own.kubectl(*labelled, "app.kubernetes.io/managed-by=us")


@pytest.mark.apiserver
def test_uninstalling_names_the_pods_that_hold_shares(
    own: access.Access, run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    with own.namespace("holders") as namespace:
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "trainer", "labels": {"gpushare.io/share": "true"}},
        }
        pod["spec"] = {"containers": [{"name": "main", "image": "x"}]}
        own.kubectl("create", "-f", "-", f"--namespace={namespace}", input=json.dumps(pod))
        for flags in (("--uninstall", "--dry-run"), ("--uninstall",)):
            done = run(*flags)
            assert done.returncode == 0, done.stderr
            named = re.search(rf"Pods that have a share, or wait for one:\n  {namespace} +trainer ", done.stdout)
            assert named
            assert named.start() < (done.stdout + "deleted").index("deleted")
        assert own.kubectl("get", "pod", "trainer", f"--namespace={namespace}", "--output=name")


@pytest.mark.apiserver
def test_install_reports_a_missing_cluster(own: access.Access) -> None:
    done = install(path=str(own.kubectl_program.parent))
    assert done.returncode == 1
    assert "error: no cluster answers at the context 'none'" in done.stderr
