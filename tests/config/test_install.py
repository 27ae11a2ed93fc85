"""install.sh, run as a user runs it, against a separate API server."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from config import overlay
from gpushare import contract
from lab import access
from tests.config import manifests
from tests.config.installation import APPLY, QUICKLY, SYSTEM, install, installed, ours

WEBHOOK = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/gpushare-webhook"
AGENT = f"/apis/apps/v1/namespaces/{SYSTEM}/daemonsets/gpushare-agent"
CONFIGURATIONS = f"/api/v1/namespaces/{SYSTEM}/configmaps/gpushare-config"
CERTIFICATE = f"/api/v1/namespaces/{SYSTEM}/secrets/gpushare-webhook-certificate"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/gpushare"


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
  'get namespace/gpushare-system') echo 'DaemonSet||mps' ;;
  'create --dry-run=client') printf '%s\\n' daemonset.apps/gpushare-mps namespace/gpushare-system customresourcedefinition.apiextensions.k8s.io/gpunodes.gpushare.io ;;
esac
"""


@pytest.mark.parametrize(
    ("fails", "flags", "sentence"),
    [
        ("get namespace/*", (), "the installed components could not be read: name them with --component"),
        ("get namespace/*", ("--without-component", "mps"), "the installed components could not be read"),
        ("create --dry-run=client*/manifests.yaml*", ("--without-component", "mps"), "nothing was changed: the objects of"),
        ("@(get namespace/|apply )*", ("--component", "mps"), "the API server rejected some objects"),
    ],
)  # fmt: skip
def test_components_that_cannot_be_read_or_listed_are_not_removed(
    tmp_path: Path, fails: str, flags: tuple[str, ...], sentence: str
) -> None:
    kubectl, calls = tmp_path / "kubectl", tmp_path / "calls"
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    done = install(*QUICKLY, *flags, path=str(tmp_path), more={"CALLS": str(calls), "FAILS": fails})
    assert done.returncode == 1
    assert f"error: {sentence}" in done.stderr
    words = [line.split()[0] for line in calls.read_text().splitlines()]
    assert "delete" not in words
    assert ("apply" in words) == ("apply" in fails)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pods", "sentence"), [("pod/gpushare-borrow-x\\npod/gpushare-borrow-y\\n", "by 2 pods"), ("", "")]
)
def test_borrowing_is_not_removed_while_gpus_are_borrowed(tmp_path: Path, pods: str, sentence: str) -> None:
    kubectl, calls = tmp_path / "kubectl", tmp_path / "calls"
    borrows = KUBECTL.replace("DaemonSet||mps", "DaemonSet||borrow").replace("daemonset.apps/gpushare-mps", "$NAMES")
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
    own.create("/api/v1/nodes", GPU_NODE)
    refused = run()
    assert refused.returncode == 1
    assert (
        "error: nothing was changed, because of images node-taints: see above, or add --skip-preflight"
        in refused.stderr
    )
    assert "Blocking: node-taints (node/gpu-1):\n  Found: 1 node with the taint sku=gpu:NoSchedule" in refused.stdout
    assert "make images PUSH=REGISTRY/PREFIX" in refused.stdout
    assert ours(own) == []
    own.patch("/api/v1/nodes/gpu-1", {"spec": {"taints": None}})
    # Now the images have a name that nodes can pull and nothing blocks, so install.sh goes on until it waits for pods.
    done = run("--registry", "127.0.0.1:5000/x", "--timeout", "1", "--component", "mps", "--component=mig")
    installed(done)
    assert "that stay" not in done.stdout
    assert "127.0.0.1:5000/x/webhook:0.3.0" in json.dumps(own.read(WEBHOOK))
    assert own.read(AGENT)["metadata"]["annotations"][overlay.RECORD] == "mps mig"


GPUNODE = yaml.safe_load((manifests.REPOSITORY / "tests/config/gpunode.yaml").read_text())
# As version 0.2.0 had it in its manifests.
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


def apply_previous(own: access.Access, kustomization: Path, *how: str) -> dict[str, str]:
    """Install as a previous release was, edit its configurations and let the webhook write; return these entries."""
    rendered = own.kubectl("kustomize", str(kustomization))
    own.kubectl(*how, "--filename=-", input=f"{rendered}\n---\n{json.dumps(CONFIG_MAP_OF_0_2_0)}")
    own.patch(CONFIGURATIONS, {"data": {"default": "version: v1\n", "mine": "version: v1\nsharing: {}\n"}})
    trusted = [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": "LS0tLS0="}]
    own.patch(f"{HOOKS}?fieldManager=webhook", trusted)
    own.patch(f"{CERTIFICATE}?fieldManager=webhook", {"data": {"ca.crt": "eA=="}})
    return entries(own)


def entries(own: access.Access) -> dict[str, str]:
    data: dict[str, str] = own.read(CONFIGURATIONS)["data"]
    return data


def check_kept(own: access.Access, before: dict[str, str]) -> None:
    assert entries(own) == before
    assert own.read(HOOKS)["webhooks"][0]["clientConfig"]["caBundle"] == "LS0tLS0="
    assert own.read(CERTIFICATE)["data"]["ca.crt"] == "eA=="


@pytest.mark.apiserver
def test_an_upgrade_keeps_what_others_wrote_and_an_uninstallation_saves_it(
    own: access.Access, run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    before = apply_previous(own, manifests.CONFIG / "default", *APPLY)
    own.wait_until_established("gpunodes.gpushare.io")
    own.create(contract.GPUNODE_PATH, GPUNODE)
    # Fields of kubectl's client-side apply are an earlier release's, and no conflict.
    dry_run = run("--dry-run", *QUICKLY)
    assert dry_run.returncode == 0, dry_run.stderr
    done = run(*QUICKLY)
    installed(done)
    assert "stay as they are" in done.stdout
    check_kept(own, before)

    dry_run = run("--uninstall", "--dry-run")
    assert dry_run.returncode == 0, dry_run.stderr
    assert "Nothing was changed." in dry_run.stdout
    assert f"Would save the configurations of nodes to {tmp_path}/gpushare-config-" in dry_run.stdout
    assert not list(tmp_path.glob("*.yaml"))
    assert '"gpushare-system" deleted (server dry run)' in dry_run.stdout
    assert len(ours(own)) > 10

    removed = run("--uninstall")
    assert removed.returncode == 0, removed.stderr
    assert "  the 3 configurations of nodes, in the ConfigMap gpushare-config\n" in removed.stdout
    (saved,) = tmp_path.glob("gpushare-config-*.yaml")
    assert f"  kubectl create --filename {saved}\n" in removed.stdout
    assert "The ledger stays" in removed.stdout
    assert ours(own) == []
    assert [item["metadata"]["name"] for item in own.read(contract.GPUNODE_PATH)["items"]] == ["gpu-1"]
    assert run("--uninstall").returncode == 0
    assert list(tmp_path.glob("*.yaml")) == [saved]
    own.create("/api/v1/namespaces", {"metadata": {"name": SYSTEM}})
    own.kubectl("create", f"--filename={saved}")
    assert entries(own) == before


def apply_overlay(own: access.Access, folder: Path, *components: str) -> None:
    """Apply the objects that install.sh applies, without its checks."""
    overlay.write(folder / "overlay", overlay.Wanted(components=components))
    own.kubectl("apply", "--server-side", f"--kustomize={folder / 'overlay'}")


@pytest.mark.apiserver
def test_a_second_installation_keeps_the_components(
    own: access.Access, run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    def capabilities() -> list[str]:
        (container,) = own.read(AGENT)["spec"]["template"]["spec"]["containers"]
        added: list[str] = container["securityContext"]["capabilities"]["add"]
        return added

    apply_overlay(own, tmp_path, "mig", "mps", "defrag", "demand")
    with_mig = capabilities()
    same = run("--dry-run", *QUICKLY, "--component=mig")
    assert same.returncode == 0, same.stderr
    assert "Components of the last installation that stay: mps defrag demand. " in same.stdout
    assert same.stdout.endswith("\nAll objects exist already, as in the manifests.\nNothing was changed.\n")
    dry_run = run("--dry-run", *QUICKLY, "--without-component", "mps").stdout
    assert "that stay: mig defrag demand. " in dry_run
    assert 'daemonset.apps "gpushare-mps" deleted' in dry_run
    assert any(path.endswith("/daemonsets/gpushare-mps") for path in ours(own))
    second = run(*QUICKLY, *[f"--without-component={name}" for name in ("mps", "mig", "demand")])
    installed(second)
    assert "that stay: defrag. " in second.stdout
    workloads = [path for path in ours(own) if "/daemonsets/" in path or "/cronjobs/" in path]
    assert [path.rpartition("/")[2] for path in workloads] == ["gpushare-agent", "gpushare-defrag"]
    assert capabilities() != with_mig
    lists = ("/api/v1/namespaces", "/apis/scheduling.k8s.io/v1/priorityclasses")
    assert not [
        item for path in lists for item in own.read(path)["items"] if "gpushare-demand" in str(item["metadata"])
    ]
    assert not [path for path in ours(own) if "gpushare-demand" in path]
    refused = run(*QUICKLY, "--without-component", "mps")
    assert refused.returncode == 1
    assert refused.stderr == "error: --without-component mps: the cluster has defrag\n"


@pytest.mark.apiserver
def test_a_field_of_another_manager_is_a_conflict_with_a_remedy(
    own: access.Access, run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    overlay.write(tmp_path / "overlay", overlay.Wanted())
    before = apply_previous(own, tmp_path / "overlay", "apply", "--server-side")
    own.patch(f"{WEBHOOK}?fieldManager=other-tool", {"spec": {"replicas": 3}})
    refused = run(*QUICKLY)
    assert refused.returncode == 1
    assert 'conflict with "other-tool"' in refused.stderr
    assert "error: other-tool has changed the fields named above" in refused.stderr
    assert "add --force-conflicts to overwrite them" in refused.stderr
    assert run("--dry-run", *QUICKLY).stderr == refused.stderr
    gone = f"/apis/policy/v1/namespaces/{SYSTEM}/poddisruptionbudgets/gpushare-webhook"
    own.delete(gone)
    forced = run("--dry-run", *QUICKLY, "--force-conflicts").stdout
    both = "  apps.v1.Deployment.gpushare-system.gpushare-webhook\n  policy.v1.PodDisruptionBudget.gpushare-system.gpushare-webhook"
    assert f"(GROUP.VERSION.KIND.NAMESPACE.NAME):\n{both}\nNothing was changed.\n" in forced
    assert own.read(WEBHOOK)["spec"]["replicas"] == 3
    assert own.find(gone) is None
    installed(run(*QUICKLY, "--force-conflicts"))
    assert own.read(WEBHOOK)["spec"]["replicas"] == 2
    check_kept(own, before)


@pytest.mark.apiserver
def test_a_user_without_rights_gets_the_missing_ones_listed(
    own: access.Access, run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    jane = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}
    own.create(bindings, {"metadata": {"name": "pf-viewer"}, "roleRef": role, "subjects": [jane]})
    settings = yaml.safe_load(own.kubeconfig.read_text())
    settings["users"][0]["user"]["as"] = "jane"
    hers = tmp_path / "kubeconfig"
    hers.write_text(json.dumps(settings))
    try:
        refused = install(path=str(own.kubectl_program.parent), kubeconfig=hers)
    finally:
        own.delete(f"{bindings}/pf-viewer")
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
    deployment = manifests.named("Deployment", "gpushare-webhook")
    deployment["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "Helm"}
    own.create("/api/v1/namespaces", {"metadata": {"name": SYSTEM}})
    own.create(WEBHOOK.rpartition("/")[0], deployment)
    for flags in ((), ("--uninstall",)):
        refused = run(*flags)
        assert refused.returncode == 1
        assert "error: gpushare was installed into this cluster by Helm: use helm upgrade" in refused.stderr
    assert ours(own) == [WEBHOOK]


@pytest.mark.apiserver
def test_install_reports_a_missing_cluster(own: access.Access) -> None:
    done = install(path=str(own.kubectl_program.parent))
    assert done.returncode == 1
    assert "error: no cluster answers at the context 'none'" in done.stderr
