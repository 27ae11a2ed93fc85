"""Consistency of the manifests: names, keys and numbers that manifests and code must agree on."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import gpushare
from deviceplugin import agent_settings
from deviceplugin.mps import steps
from gpushare import contract, errors, quantity
from gpushare import request as requests
from gpushare.config.node_settings import NodeSettings
from gpushare.object_parsers import read_yaml
from gpushare.syntaxes.translation import SYNTAXES
from lab import access
from tests import builders
from tests.config import manifests
from tests.config.installation import list_of
from webhook import webhook_settings

pytestmark = pytest.mark.slow

CEL_KEY = re.compile(r"'(gpushare\.io/[^']*)'")


def test_every_file_is_part_of_the_default_installation() -> None:
    on_disk = {path for path in (manifests.CONFIG / "base").rglob("*.yaml") if path.name != "kustomization.yaml"}
    assert set(manifests.files(manifests.CONFIG / "default")) == on_disk


def test_the_lab_installs_the_default_installation() -> None:
    lab = yaml.safe_load((manifests.CONFIG / "lab" / "kustomization.yaml").read_text())
    assert lab["resources"] == ["../default"]
    assert set(lab) == {"apiVersion", "kind", "resources", "components"}
    assert all(part.startswith("../components/") for part in lab["components"])


def test_names_in_manifests_equal_the_contract() -> None:
    for name in (contract.WEBHOOK_SERVICE_ACCOUNT, contract.AGENT_SERVICE_ACCOUNT):
        assert manifests.named("ServiceAccount", name)["metadata"]["namespace"] == contract.SYSTEM_NAMESPACE
    manifests.named("Namespace", contract.SYSTEM_NAMESPACE)
    manifests.named("Secret", contract.CERTIFICATE_SECRET)
    crd = manifests.named("CustomResourceDefinition", f"{contract.GPUNODE_PLURAL}.{contract.GROUP_NAME}")
    assert crd["spec"]["names"]["kind"] == contract.GPUNODE_KIND
    assert [version["name"] for version in crd["spec"]["versions"]] == [contract.VERSION]
    *others, hook = manifests.named("MutatingWebhookConfiguration", contract.WEBHOOK_CONFIGURATION)["webhooks"]
    assert hook["name"] == contract.WEBHOOK_NAME
    assert [other["name"] for other in others] == [f"{name}{contract.SYNTAX_WEBHOOK_SUFFIX}" for name in SYNTAXES]
    paths = [contract.WEBHOOK_PATH, *(f"{contract.WEBHOOK_PATH}/{name}" for name in SYNTAXES)]
    for each, path in zip((hook, *others), paths, strict=True):
        service = each["clientConfig"]["service"]
        assert service["path"] == path
        assert (service["name"], service["namespace"]) == (webhook_settings.SERVICE, contract.SYSTEM_NAMESPACE)
    manifests.named("Service", webhook_settings.SERVICE)


def test_the_role_names_the_objects_of_the_contract() -> None:
    roles = [manifests.named("Role", name) for name in ("gpushare-webhook", "gpushare-webhook-certificates")]
    names = [name for role in roles for rule in role["rules"] for name in rule.get("resourceNames", [])]
    assert names == [contract.PLACER_LEASE, contract.PLACEMENT_CONFIG_MAP, contract.CERTIFICATE_SECRET]


def keys_in(expression: str) -> set[str]:
    return set(CEL_KEY.findall(expression))


SHARE_KEYS_IN_CEL = {*contract.SHARE_KEYS, *(key + "." for key in contract.PER_CONTAINER_KEYS)}


def test_the_webhook_is_called_for_exactly_the_requesting_keys() -> None:
    *others, hook = manifests.named("MutatingWebhookConfiguration", contract.WEBHOOK_CONFIGURATION)["webhooks"]
    assert {other["failurePolicy"] for other in others} == {"Fail"}
    conditions = {match_condition["name"]: match_condition["expression"] for match_condition in hook["matchConditions"]}
    (asks,) = conditions.values()
    assert keys_in(asks) == SHARE_KEYS_IN_CEL
    assert hook["failurePolicy"] == "Fail"


def test_the_policy_protects_exactly_the_contracts_keys() -> None:
    spec = manifests.named("ValidatingAdmissionPolicy", "gpushare-pods")["spec"]
    variables = {variable["name"]: variable["expression"] for variable in spec["variables"]}
    assert keys_in(variables["asksForShare"]) == SHARE_KEYS_IN_CEL
    assert keys_in(variables["changedResults"]) == {*contract.RESULT_KEYS, contract.GPU_UUIDS + "."}
    assert keys_in(variables["changed"]) == {contract.PREFIX}
    resizable = {*contract.RESIZABLE_KEYS, *(key + "." for key in contract.RESIZABLE_KEYS), contract.ALLOCATION}
    assert keys_in(variables["changedCompute"] + variables["changedMemory"]) == resizable
    assert keys_in(variables["labelAfter"]) == {contract.SHARE_LABEL}
    assert keys_in(variables["gatedAfter"]) == {contract.SCHEDULING_GATE}
    webhook = f"system:serviceaccount:{contract.SYSTEM_NAMESPACE}:{contract.WEBHOOK_SERVICE_ACCOUNT}"
    assert webhook in spec["matchConditions"][0]["expression"]
    for manifest in manifests.objects():
        if manifest["kind"] == "ValidatingAdmissionPolicy":
            assert manifest["spec"]["failurePolicy"] == "Fail"


@functools.cache
def pattern_of(variable: str) -> re.Pattern[str]:
    """Return the regular expression in one of the policy's variables."""
    spec = manifests.named("ValidatingAdmissionPolicy", "gpushare-pods")["spec"]
    (expression,) = (entry["expression"] for entry in spec["variables"] if entry["name"] == variable)
    return re.compile("".join(re.findall(r"'([^']*)'", expression)))


AMOUNTS = st.from_regex(
    r"(0{0,3}[0-9]{1,4}(\.[0-9]{0,4}0{0,3})?|\.[0-9]{1,4})(%|m|Gi|k|e3)?", fullmatch=True
) | st.text(alphabet="0123456789.%mkGieE-+", max_size=8)


@given(AMOUNTS)
def test_policy_and_webhook_accept_the_same_gpu_fractions(text: str) -> None:
    try:
        quantity.parse_compute(text)
        taken = True
    except errors.QuantityError:
        taken = False
    assert bool(pattern_of("wrongCompute").search(text)) == taken


@given(AMOUNTS)
def test_policy_and_webhook_accept_the_same_memory_quantities(text: str) -> None:
    try:
        requests.parse(builders.pod(memory=text))
        taken = True
    except errors.RequestError as error:  # the placer handles these
        taken = "gives no memory" in str(error) or "2^63-1 bytes" in str(error)
        taken = taken or "less than 1Mi" in str(error)
    assert bool(pattern_of("wrongMemory").search(text)) == taken


def test_every_policy_denies_and_the_template_policy_warns() -> None:
    bound = {
        binding["spec"]["policyName"]: binding["spec"]["validationActions"]
        for binding in manifests.objects()
        if binding["kind"] == "ValidatingAdmissionPolicyBinding"
    }
    policies = {doc["metadata"]["name"] for doc in manifests.objects() if doc["kind"] == "ValidatingAdmissionPolicy"}
    assert bound == {name: ["Warn" if name == "gpushare-templates" else "Deny"] for name in policies}


def test_the_webhook_is_not_called_for_exempt_namespaces() -> None:
    for hook in manifests.named("MutatingWebhookConfiguration", contract.WEBHOOK_CONFIGURATION)["webhooks"]:
        (rule,) = hook["namespaceSelector"]["matchExpressions"]
        assert rule["operator"] == "NotIn"
        assert tuple(rule["values"]) == contract.EXEMPT_NAMESPACES


def test_a_syntax_is_understood_only_where_its_label_says_so() -> None:
    *others, hook = manifests.named("MutatingWebhookConfiguration", contract.WEBHOOK_CONFIGURATION)["webhooks"]
    selected = [other["namespaceSelector"]["matchLabels"] for other in others]
    assert selected == [{f"{contract.UNDERSTAND_PREFIX}{name}": contract.UNDERSTAND_VALUE} for name in SYNTAXES]
    assert "matchLabels" not in hook["namespaceSelector"]


def workload(kind: str, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    spec = manifests.named(kind, name)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    return spec, container


def test_the_webhook_survives_a_drain_and_meets_the_restricted_standard() -> None:
    deployment = manifests.named("Deployment", "gpushare-webhook")["spec"]
    assert deployment["replicas"] >= 2
    spec, container = workload("Deployment", "gpushare-webhook")
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    selected = deployment["selector"]["matchLabels"]
    assert manifests.named("PodDisruptionBudget", "gpushare-webhook")["spec"]["selector"]["matchLabels"] == selected
    assert manifests.named("Service", "gpushare-webhook")["spec"]["selector"] == selected
    assert deployment["template"]["metadata"]["labels"] == selected
    (constraint,) = spec["topologySpreadConstraints"]
    assert constraint["labelSelector"]["matchLabels"] == selected


def test_the_webhook_accepts_its_arguments_and_serves_its_probes() -> None:
    _, container = workload("Deployment", "gpushare-webhook")
    parsed = webhook_settings.parse(container["args"], {entry["name"]: "x" for entry in container["env"]})
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"reviews": parsed.port, "probes": parsed.probe_port}
    assert parsed.instance == "x"
    assert str(parsed.certificate_directory) in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_the_agent_accepts_its_arguments_and_has_its_mounts() -> None:
    spec, container = workload("DaemonSet", "gpushare-agent")
    parsed = agent_settings.parse(container["args"], {entry["name"]: "x" for entry in container["env"]})
    assert parsed.node_name == "x"
    assert [port["containerPort"] for port in container["ports"]] == [parsed.probe_port]
    assert spec["hostPID"] is True
    # The agent needs exactly these, as tests/deviceplugin/arbiter/test_capabilities.py shows.
    assert container["securityContext"]["capabilities"] == {
        "drop": ["ALL"],
        "add": ["CHECKPOINT_RESTORE", "SYS_PTRACE"],
    }
    host_paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    # The kubelet receives these paths and mounts them from the host.
    assert set(host_paths.values()) == mounted
    for directory in (parsed.kubelet_directory, parsed.root, parsed.run_directory, parsed.state_directory):
        assert any(directory.is_relative_to(path) for path in mounted), directory


COMPONENTS = sorted(path.parent for path in (manifests.CONFIG / "components").glob("*/kustomization.yaml"))
DEMAND = "demand", "demand-gangs"
# `openshift` precedes the components that extend it. `driver-root` is `cdi` with another path; it depends on the
# position of its volume. `driver-memory` needs another cgroup root than `deny-unregistered`.
BEFORE, AFTER = "openshift", ("deny-unregistered", "driver-memory")
ALL = sorted(
    (component for component in COMPONENTS if component.name != "cdi"),
    key=lambda path: (path.name != BEFORE, path.name in AFTER, path.name),
)


def patched(component: Path, kind: str = "DaemonSet", name: str = "gpushare-agent") -> dict[str, Any]:
    """Return a workload with a component applied, and with the components that it consists of."""
    manifest = manifests.named(kind, name)
    for folder in (*_made_of(component), component):
        for entry in yaml.safe_load((folder / "kustomization.yaml").read_text()).get("patches", []):
            if entry.get("target") == {"kind": kind, "name": name}:
                manifest = jsonpatch.apply_patch(manifest, yaml.safe_load(entry["patch"]))
    return manifest


def _made_of(component: Path) -> list[Path]:
    kustomization = yaml.safe_load((component / "kustomization.yaml").read_text())
    return [(component / other).resolve() for other in kustomization.get("components", [])]


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda path: path.name)
def test_the_agent_accepts_every_component(component: Path) -> None:
    spec = patched(component)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    environment = {entry["name"]: entry.get("value", "x") for entry in container["env"]}
    parsed = agent_settings.parse(container["args"], environment)
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    adds = container["securityContext"]["capabilities"]["add"]
    # The API server rejects allowPrivilegeEscalation: false together with SYS_ADMIN.
    assert ("SYS_ADMIN" in adds) is (component.name in {"mig", "mps", "driver-memory"})
    assert container["securityContext"]["allowPrivilegeEscalation"] is ("SYS_ADMIN" in adds)
    if component.name == "mig":
        assert environment["NVIDIA_MIG_CONFIG_DEVICES"] == "all"
    assert parsed.end_unlimited is (component.name == "end-unlimited")
    assert ("KILL" in adds) is (component.name in {"end-unlimited", "borrow"})
    assert parsed.deny_unregistered is (component.name == "deny-unregistered")
    assert parsed.driver_memory is (component.name == "driver-memory")
    assert ({"BPF", "NET_ADMIN", "PERFMON"} <= set(adds)) is parsed.deny_unregistered
    assert ({str(parsed.bpf_root), str(parsed.cgroup_root)} <= mounted) is parsed.deny_unregistered
    if component.name in {"cdi", "driver-root"}:
        assert {str(parsed.cdi_directory), NodeSettings().container_driver_root} <= mounted


def test_the_webhook_accepts_the_components_of_demand() -> None:
    added = [patched(manifests.CONFIG / "components" / name, "Deployment", "gpushare-webhook") for name in DEMAND]
    flags = dict.fromkeys(flag for made in added for flag in made["spec"]["template"]["spec"]["containers"][0]["args"])
    parsed = webhook_settings.parse(list(flags), {})
    assert parsed.demand_resource == contract.RESOURCE_PERCENT
    policies = manifests.documents(manifests.CONFIG / "components" / DEMAND[1] / "policy.yaml")
    allowed = [rule["expression"] for made in policies for rule in made["spec"].get("validations", ())]
    assert any(f"== '{parsed.demand_provisioning_class}'" in rule for rule in allowed)
    assert any(rule.endswith(f"<= {parsed.demand_max_gpus}") for rule in allowed)


def test_the_webhook_serves_the_certificate_of_cert_manager() -> None:
    directory = manifests.CONFIG / "components" / "cert-manager"
    spec = patched(directory, "Deployment", "gpushare-webhook")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    parsed = webhook_settings.parse(container["args"], {})
    (mounted,) = [
        volume_mount["name"]
        for volume_mount in container["volumeMounts"]
        if volume_mount["mountPath"] == str(parsed.certificate_files)
    ]
    (secret,) = [volume["secret"]["secretName"] for volume in spec["volumes"] if volume["name"] == mounted]
    made = {
        document["metadata"]["name"]: document["spec"]
        for document in manifests.documents(directory / "certificates.yaml")
    }
    assert made["gpushare-webhook"]["secretName"] == secret
    assert tuple(made["gpushare-webhook"]["dnsNames"]) == parsed.names
    hook = patched(directory, "MutatingWebhookConfiguration", "gpushare")
    (injected,) = hook["metadata"]["annotations"].items()
    assert injected == ("cert-manager.io/inject-ca-from", f"{contract.SYSTEM_NAMESPACE}/gpushare-webhook")


def test_with_cert_manager_the_webhook_makes_no_certificates() -> None:
    directory = manifests.CONFIG / "components" / "cert-manager"
    entries = yaml.safe_load((directory / "kustomization.yaml").read_text())["patches"]
    gone = [yaml.safe_load(entry["patch"]) for entry in entries if "target" not in entry]
    assert {patch["$patch"] for patch in gone} == {"delete"}
    own = manifests.objects(manifests.CONFIG / "base" / "certificates")
    assert sorted((patch["kind"], patch["metadata"]["name"]) for patch in gone) == sorted(
        (manifest["kind"], manifest["metadata"]["name"]) for manifest in own
    )


def test_the_agent_finds_the_mps_keeper() -> None:
    account, keeper = manifests.documents(manifests.CONFIG / "components" / "mps" / "daemonset.yaml")
    assert keeper["spec"]["template"]["spec"]["serviceAccountName"] == account["metadata"]["name"]
    spec = keeper["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    agent = patched(manifests.CONFIG / "components" / "mps")["spec"]["template"]["spec"]
    parsed = agent_settings.parse(agent["containers"][0]["args"], {"NODE_NAME": "x"})
    assert container["args"] == [f"--socket={parsed.mps_program}"]
    assert parsed.mps_program.parent == parsed.mps_root
    sources = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    mounts = {mount["mountPath"]: sources[mount["name"]] for mount in container["volumeMounts"]}
    # Allocate gives clients the second path.
    mps_paths = steps.DaemonFiles(parsed.mps_root, "GPU-a")
    assert mounts == {str(mps_paths.root): str(mps_paths.root), "/dev/shm": str(mps_paths.shm)}
    assert spec["hostPID"] is True
    assert spec["affinity"] == agent["affinity"]
    assert spec["tolerations"] == agent["tolerations"]
    # Replacing it ends the programs that use it.
    assert keeper["spec"]["updateStrategy"] == {"type": "OnDelete"}


@pytest.mark.apiserver
@pytest.mark.parametrize(
    "chosen", [*([component] for component in COMPONENTS), ALL], ids=lambda some: "+".join(path.name for path in some)
)
def test_the_api_server_accepts_the_installation_with_components(
    api_server: access.Access, tmp_path: Path, chosen: list[Path]
) -> None:
    def relative(path: Path) -> str:
        return os.path.relpath(path, tmp_path.resolve())

    wanted = {
        "resources": [relative(manifests.CONFIG / "default")],
        "components": [relative(path) for path in chosen],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
    rendered = list(read_yaml(api_server.kubectl("kustomize", str(tmp_path))))
    sets = [manifest for manifest in rendered if manifest["kind"] == "DaemonSet"]
    names = {path.name for path in chosen}
    assert {manifest["metadata"]["name"] for manifest in sets} == {
        "gpushare-agent",
        *(["gpushare-mps"] if "mps" in names else []),
    }
    assert all(manifest["metadata"]["labels"]["app.kubernetes.io/part-of"] == "gpushare" for manifest in rendered)
    # Every right that a component adds to the agent must also be in the agent's OpenShift constraints.
    for doc in rendered:
        pods = [two["spec"]["template"]["spec"] for two in sets if two["metadata"]["name"] == doc["metadata"]["name"]]
        if doc["kind"] == "SecurityContextConstraints" and pods:
            security = pods[0]["containers"][0]["securityContext"]
            assert set(doc["allowedCapabilities"]) == set(security["capabilities"]["add"])
            assert doc["allowPrivilegeEscalation"] is security["allowPrivilegeEscalation"]
    for doc in sets:
        (container,) = doc["spec"]["template"]["spec"]["containers"]
        assert container["image"] == f"localhost/gpushare/agent:{gpushare.__version__}"
    kinds = {"CronJob", "DaemonSet", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "ResourceQuota", "Service"}
    tried = [doc for doc in rendered if doc["kind"] in kinds]
    for doc in tried:
        doc["metadata"]["namespace"] = "default"
        api_server.create(list_of(doc), doc, dry_run=True)  # which refuses unknown fields
    assert len(tried) > 5


def test_images_have_the_version_of_the_project() -> None:
    images = yaml.safe_load((manifests.CONFIG / "default" / "kustomization.yaml").read_text())["images"]
    assert {image["newTag"] for image in images} == {gpushare.__version__}
    used = {workload("Deployment", "gpushare-webhook")[1]["image"], workload("DaemonSet", "gpushare-agent")[1]["image"]}
    assert used == {image["name"] for image in images}


def test_image_names_cannot_be_claimed_in_a_public_registry() -> None:
    """A runtime looks for `gpushare/agent` in its default registry; the owner of that name would be root on every
    node.
    """
    files = [path for part in ("base", "components") for path in (manifests.CONFIG / part).rglob("*.yaml")]
    values = manifests.REPOSITORY / "charts" / "gpushare" / "values.yaml"
    named = [name for path in files for name in re.findall(r"^ *(?:- )?image: (\S+)$", path.read_text(), re.MULTILINE)]
    named += re.findall(r"^ *repository: (\S+)$", values.read_text(), re.MULTILINE)
    assert len(named) >= 5
    assert [name for name in named if not name.startswith("localhost/gpushare/")] == []


@pytest.mark.apiserver
@pytest.mark.parametrize(
    ("directory", "more"),
    [("default", []), ("lab", [("DaemonSet", "gpushare-mps"), ("ServiceAccount", "gpushare-mps")])],
)
def test_kubectl_renders_exactly_the_listed_objects(
    api_server: access.Access, directory: str, more: list[tuple[str, str]]
) -> None:
    rendered = api_server.kubectl("kustomize", str(manifests.CONFIG / directory))
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in read_yaml(rendered)]
    here = manifests.objects(manifests.CONFIG / "default")
    assert sorted(names) == sorted([*((manifest["kind"], manifest["metadata"]["name"]) for manifest in here), *more])
    (hook,) = [doc for doc in read_yaml(rendered) if doc["kind"] == "MutatingWebhookConfiguration"]
    assert hook["webhooks"][-1]["clientConfig"]["service"]["path"] == contract.WEBHOOK_PATH
