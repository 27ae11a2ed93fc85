"""Each precondition, met and violated. Facts that could not be read never count as met."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from gpushare import contract, preflight
from gpushare.preflight import devices, facts_of_cluster, finding, health_rules
from gpushare.preflight.facts_of_cluster import ClusterFacts, InstallPlan, Workload
from gpushare.preflight.finding import Finding, RulePhase, Severity
from tests.config import manifests
from tests.gpushare.preflight import sound
from tests.gpushare.preflight.broken import (
    BEFORE,
    BLOCKING,
    BROKEN,
    UNKNOWN,
    WARNING,
    both,
    nodes,
    setting,
    with_objects,
)
from tests.gpushare.preflight.sound import daemonset, named, node


def findings_of(facts: ClusterFacts, rule: str) -> list[Finding]:
    return [finding for finding in preflight.check(facts) if finding.rule == rule]


def test_a_healthy_cluster_has_no_findings() -> None:
    for installing in (False, True):
        findings = {finding.rule: finding for finding in preflight.check(sound.cluster_facts(installing=installing))}
        worse = {rule: finding.found for rule, finding in findings.items() if finding.severity is not Severity.OK}
        assert set(worse) == {"visible-devices"}, worse
        assert findings["visible-devices"].severity is Severity.INFO


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_cluster_gives_its_finding(name: str) -> None:
    change, rule, severity, part, concerned = BROKEN[name]
    check_finding(findings_of(sound.cluster_facts(change), rule), severity, part, concerned)


@pytest.mark.parametrize("name", BEFORE)
def test_each_broken_cluster_gives_its_finding_before_installation(name: str) -> None:
    change, rule, severity, part, concerned = BEFORE[name]
    check_finding(findings_of(sound.cluster_facts(change, installing=True), rule), severity, part, concerned)


def check_finding(findings: list[Finding], severity: Severity, part: str, concerned: tuple[str, ...]) -> None:
    assert [item.severity for item in findings] == [severity], findings
    assert part in findings[0].found
    assert findings[0].subjects == concerned
    assert findings[0].why
    if severity >= WARNING:
        assert findings[0].remedy or findings[0].commands


def test_every_rule_has_a_broken_cluster() -> None:
    assert {rule for _, rule, *_ in (*BROKEN.values(), *BEFORE.values())} | {"installed"} == {
        rule.id for rule in preflight.RULES
    }


def test_a_missing_installation_gives_one_blocking_finding() -> None:
    nothing = both(
        *(with_objects(kind, only=True) for kind in ("Deployment", "DaemonSet", "MutatingWebhookConfiguration"))
    )
    findings = preflight.check(sound.cluster_facts(nothing))
    assert [item.rule for item in findings if item.severity is BLOCKING] == ["installed"]
    assert "webhook-ready" not in {item.rule for item in findings}


def test_a_node_labelled_against_nvidias_plugin_has_no_other_owner() -> None:
    """This label is the GPU operator's way to exclude a node, and the one in the remedy."""
    operators = daemonset("nvidia-device-plugin-daemonset", "gpu-operator", nodeSelector={"nvidia.com/gpu.deploy.device-plugin": "true"})  # fmt: skip
    for value, concerned in (("true", ("node/gpu-3",)), ("false", ())):
        labelled = node("gpu-3", labels={"nvidia.com/gpu.deploy.device-plugin": value})
        findings = findings_of(
            sound.cluster_facts(both(with_objects("DaemonSet", operators), with_objects("Node", labelled))), "gpu-owner"
        )
        assert findings[0].subjects == concerned
    assert findings[0].severity is Severity.OK


def test_a_node_of_another_device_plugin_is_no_warning_and_gets_the_label_that_selects_the_agent() -> None:
    kept = named("Node", "kept", status={"allocatable": {"nvidia.com/gpu": "8"}})
    opted = ({"matchExpressions": [{"key": "gpushare.io/config", "operator": "Exists"}]},)
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": opted}}}
    opt_in = setting(plan=facts_of_cluster.InstallPlan(agent=facts_of_cluster.Workload({"affinity": affinity})))
    ours = node("gpu-3", labels={"gpushare.io/config": "default"})
    for change, label in ((nodes(ours, kept), "nvidia.com/gpu.present=true"), (both(opt_in, nodes(ours, kept)), "gpushare.io/config=default")):  # fmt: skip
        (finding,) = findings_of(sound.cluster_facts(change, installing=True), "gpu-nodes-labelled")
        assert (finding.severity, finding.subjects) == (Severity.INFO, ("node/kept",))
        assert finding.commands == (f"kubectl label node kept {label}",)


def test_an_image_present_on_every_node_needs_no_registry() -> None:
    images = [{"names": ["localhost/gpushare/agent:0.3.0", "localhost/gpushare/agent"]}]
    loaded = [{**node(name), "status": {**node(name)["status"], "images": images}} for name in ("gpu-1", "gpu-2")]
    change = setting(plan=facts_of_cluster.from_manifests([sound.base("deviceplugin/daemonset.yaml")]))
    assert (
        findings_of(sound.cluster_facts(both(change, nodes(*loaded)), installing=True), "images")[0].severity
        is Severity.OK
    )
    half = both(change, nodes(loaded[0], node("gpu-2")))
    assert findings_of(sound.cluster_facts(half, installing=True), "images")[0].subjects == ("node/gpu-2",)


@pytest.mark.parametrize(
    ("labels", "image", "cdi"),
    [({"app.kubernetes.io/version": "v25.10.1"}, "", True), ({"app.kubernetes.io/version": "v25.3.4"}, "", False),
     ({}, "nvcr.io/nvidia/gpu-operator:v26.7.0", True), ({}, "nvcr.io/nvidia/gpu-operator:v24.9.2", False), ({}, "", False)],
)  # fmt: skip
def test_gpu_operator_25_10_or_newer_uses_cdi_by_default(labels: dict[str, str], image: str, cdi: bool) -> None:
    deployment = named("Deployment", "gpu-operator", "gpu-operator", spec={"template": {"spec": {"containers": [{"image": image}]}}})  # fmt: skip
    silent = named("ClusterPolicy", "p", labels=labels, spec={})
    for spec, expected in ({}, cdi), ({"cdi": {"enabled": not cdi}}, not cdi):
        policy = {**silent, "spec": spec}
        facts = sound.cluster_facts(
            both(with_objects("ClusterPolicy", policy), with_objects("Deployment", *([deployment] if image else [])))
        )
        assert devices.operator_with_cdi(facts) is expected


@pytest.mark.parametrize(
    ("arguments", "environment", "configuration", "expected"),
    [([], {}, "", {"envvar"}), (["--device-list-strategy=cdi-cri"], {}, "", {"cdi-cri"}),
     ([], {"DEVICE_LIST_STRATEGY": "envvar,cdi-annotations"}, "", {"envvar", "cdi-annotations"}),
     ([], {}, "flags:\n  plugin:\n    deviceListStrategy: [volume-mounts, cdi-cri]", {"volume-mounts", "cdi-cri"})],
)  # fmt: skip
def test_the_device_list_strategy_is_read_like_the_agent_does(
    arguments: list[str], environment: dict[str, str], configuration: str, expected: set[str]
) -> None:
    container = {"args": arguments, "env": [{"name": key, "value": value} for key, value in environment.items()]}
    assert (
        devices.strategies(InstallPlan(Workload({"containers": [container]}), configurations={"a": configuration}))
        == expected
    )


@pytest.mark.slow
def test_the_default_install_plan_equals_the_manifests() -> None:
    agent = Workload.from_manifest(sound.base("deviceplugin/daemonset.yaml"))
    default = InstallPlan().agent
    for key in ("tolerations", "affinity"):
        assert default.pod[key] == agent.pod[key]
    assert (
        default.host_path(facts_of_cluster.KUBELET_VOLUME)
        == agent.host_path(facts_of_cluster.KUBELET_VOLUME)
        == facts_of_cluster.KUBELET_DIRECTORY
    )
    assert {manifest["metadata"]["name"] for manifest in manifests.objects() if manifest["kind"] == "ValidatingAdmissionPolicyBinding" and "Deny" in manifest["spec"]["validationActions"]} == {*health_rules.BINDINGS}  # fmt: skip


@pytest.mark.parametrize("kind", [*facts_of_cluster.KINDS, "version", "groups", "rights", "trial"])
@pytest.mark.parametrize("installing", [False, True])
def test_unreadable_objects_give_unknown_findings_with_the_reason(kind: str, installing: bool) -> None:
    def hide(facts: dict[str, Any]) -> None:
        facts["unread"] = {kind: "you may not"}
        if kind in facts_of_cluster.KINDS:
            del facts["objects"][kind]
        else:
            facts[kind] = None

    whole = {
        finding.rule
        for finding in preflight.check(sound.cluster_facts(installing=installing))
        if finding.severity is Severity.OK
    }
    findings = preflight.check(sound.cluster_facts(hide, installing=installing))
    unknown = {item.rule for item in findings if item.found == "not known: you may not"}
    assert all(item.severity is UNKNOWN for item in findings if item.rule in unknown)
    assert unknown or kind in ADDING or (kind in ONLY_AFTER and installing) or (kind == "rights" and not installing)
    fine = {item.rule for item in findings if item.severity is Severity.OK}
    assert fine <= whole - unknown


# Without these, rules have less to check but are not unknown, or the plan made from them is reported instead.
ADDING = {"ConfigMap"}
ONLY_AFTER = {"Deployment", "ValidatingAdmissionPolicyBinding", contract.GPUNODE_KIND, "trial"}


@pytest.mark.slow
@given(installing=some.booleans(), missing=some.sets(some.sampled_from(sorted(facts_of_cluster.KINDS))))
def test_every_rule_reports_a_finding_when_kinds_are_missing(installing: bool, missing: set[str]) -> None:
    def hide(facts: dict[str, Any]) -> None:
        facts["objects"] = {kind: members for kind, members in facts["objects"].items() if kind not in missing}

    findings = preflight.check(sound.cluster_facts(hide, installing=installing))
    asked = {
        rule.id
        for rule in preflight.RULES
        if rule.phase in {RulePhase.ANY, RulePhase.BEFORE if installing else RulePhase.AFTER}
    }
    assert asked <= {item.rule for item in findings}
    assert all(item.found and item.why for item in findings)


def test_rule_ids_are_unique_and_rules_are_documented() -> None:
    ids = [rule.id for rule in preflight.RULES]
    assert len(ids) == len(set(ids))
    assert all(rule.id.replace("-", "").islower() and rule.wanted and rule.why for rule in preflight.RULES)


def test_configurations_come_from_the_config_map_of_the_agent() -> None:
    told = {"containers": [{"name": "agent", "args": ["--config-map=gpushare-system/of-ours"]}]}
    agent = {"kind": "DaemonSet", "metadata": {"name": facts_of_cluster.AGENT}, "spec": {"template": {"spec": told}}}
    usual, ours = (
        {"kind": "ConfigMap", "metadata": {"name": name}, "data": {"default": name}}
        for name in (contract.CONFIG_MAP, "of-ours")
    )
    assert facts_of_cluster.from_manifests([usual, ours]).configurations == {"default": contract.CONFIG_MAP}
    for order in ([usual, ours, agent], [agent, ours, usual]):
        assert facts_of_cluster.from_manifests(order).configurations == {"default": "of-ours"}
    assert facts_of_cluster.from_manifests([usual, agent]).configurations == {}


EVIL = "n1 $(touch pwned); x"


def renamed(value: Any) -> Any:
    """Add shell syntax to every text that could appear in a command."""
    if isinstance(value, dict):
        return {
            key: f"{item}{EVIL}"
            if key in {"name", "namespace", "key", "nodeName"} and isinstance(item, str)
            else renamed(item)
            for key, item in value.items()
        }
    return type(value)(map(renamed, value)) if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("name", BROKEN)
def test_commands_contain_no_name_that_a_shell_would_interpret(name: str) -> None:
    """The API server does not allow such names, but a saved file may contain any."""
    facts = sound.cluster_facts(BROKEN[name][0])
    objects = {kind: renamed(items) for kind, items in facts.objects.items()}
    for found in preflight.check(dataclasses.replace(facts, objects=objects)):
        assert not any("touch pwned" in command for command in found.commands), found


@pytest.mark.parametrize("name", ["--all", "-n", "a b", "a;b", "$(x)", "`x`", "a\nb", "", "a'b"])
def test_invalid_object_names_are_replaced_by_a_placeholder(name: str) -> None:
    assert finding.names([name], "NODE...") == "NODE..."
    assert finding.names(["node-1.example.com", "nvidia.com/gpu"], "NODE...") == "node-1.example.com nvidia.com/gpu"


@pytest.mark.parametrize(("amount", "holds"), [("1", True), ("0", False)])
def test_a_pod_with_zero_gpus_holds_no_gpu(amount: str, holds: bool) -> None:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": amount}}}
    assert devices.holds_gpu({"spec": {"containers": [container]}}) is holds
