"""Each ServiceAccount has exactly the rights in the tables of `tests.rights`, according to the API server."""

from __future__ import annotations

import itertools
import json

import pytest

from gpushare import contract
from tests.config.conftest import Cluster
from tests.rights import ACCOUNTS, AT_HOME, DEFRAG, EVERYWHERE, Right, expected

pytestmark = pytest.mark.apiserver

REVIEWS = "/apis/authorization.k8s.io/v1"


def granted(cluster: Cluster, account: str, namespace: str) -> set[Right]:
    """Return the rights of a ServiceAccount in a namespace, as the API server reports them."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    user = f"system:serviceaccount:{contract.SYSTEM_NAMESPACE}:{account}"
    answer = cluster.administrator.create(f"{REVIEWS}/selfsubjectrulesreviews", review, user=user)
    assert not answer["status"]["incomplete"]
    rights = set()
    for rule in answer["status"]["resourceRules"]:
        names = [f"/{name}" for name in rule.get("resourceNames") or []] or [""]
        for group, resource, name, verb in itertools.product(
            rule.get("apiGroups") or [""], rule.get("resources") or [], names, rule["verbs"]
        ):
            rights.add((resource + (f".{group}" if group else "") + name, verb))
    return rights


@pytest.mark.parametrize("account", [*ACCOUNTS, DEFRAG])
def test_rights_in_the_own_namespace_equal_the_table(installed: Cluster, account: str) -> None:
    anyone = granted(installed, "anyone-else", contract.SYSTEM_NAMESPACE)
    rights = granted(installed, account, contract.SYSTEM_NAMESPACE) - anyone
    assert rights == expected(EVERYWHERE[account], AT_HOME[account])


@pytest.mark.parametrize("account", [*ACCOUNTS, DEFRAG])
def test_rights_in_other_namespaces_equal_the_table(installed: Cluster, account: str) -> None:
    anyone = granted(installed, "anyone-else", "default")
    assert granted(installed, account, "default") - anyone == expected(EVERYWHERE[account])


def allowed(cluster: Cluster, account: str, verb: str, resource: str) -> bool:
    """Whether the API server allows this to the account in its namespace."""
    return may(cluster, f"system:serviceaccount:{contract.SYSTEM_NAMESPACE}:{account}", verb, resource)


def may(cluster: Cluster, user: str, verb: str, resource: str, *, namespace: str = contract.SYSTEM_NAMESPACE) -> bool:
    """Whether `kubectl auth can-i` allows this to a user; `resource` as in `Right`."""
    what, _, name = resource.partition(" ")
    what, _, group = what.partition(".")
    plural, _, subresource = what.partition("/")
    asked = {"verb": verb, "group": group, "resource": plural, "subresource": subresource, "name": name}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": user,
            "groups": ["system:serviceaccounts"] * user.startswith("system:") + ["system:authenticated"],
            "resourceAttributes": {"namespace": namespace, **asked},
        },
    }
    answer = cluster.administrator.create(f"{REVIEWS}/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


def test_the_webhook_has_the_rights_it_needs(installed: Cluster) -> None:
    assert allowed(installed, contract.WEBHOOK_SERVICE_ACCOUNT, "update", "gpunodes.gpushare.io")
    assert allowed(installed, contract.WEBHOOK_SERVICE_ACCOUNT, "update", f"secrets {contract.CERTIFICATE_SECRET}")


@pytest.mark.parametrize("account", [*ACCOUNTS, DEFRAG])
@pytest.mark.parametrize(
    ("verb", "resource"),
    [
        ("create", "pods"),
        ("delete", "pods"),
        ("create", "pods/exec"),
        ("create", "secrets"),
        ("list", "secrets"),
        ("get", "secrets other"),
        ("get", "configmaps"),
        ("update", "nodes"),
        ("delete", "gpunodes.gpushare.io"),
        ("create", "serviceaccounts/token"),
        ("create", "mutatingwebhookconfigurations.admissionregistration.k8s.io"),
        ("patch", "mutatingwebhookconfigurations.admissionregistration.k8s.io other"),
        ("impersonate", "users"),
        ("escalate", "clusterroles.rbac.authorization.k8s.io"),
    ],
)
def test_the_accounts_lack_dangerous_rights(installed: Cluster, account: str, verb: str, resource: str) -> None:
    assert not allowed(installed, account, verb, resource)


def test_spec_and_status_of_a_gpunode_have_one_writer_each(installed: Cluster) -> None:
    def can(account: str, verb: str, resource: str) -> bool:
        return (resource, verb) in granted(installed, account, "default")

    agent, webhook = ACCOUNTS
    assert can(webhook, "update", "gpunodes.gpushare.io")
    assert can(agent, "patch", "gpunodes/status.gpushare.io")
    assert not can(webhook, "patch", "gpunodes/status.gpushare.io")
    assert not can(agent, "update", "gpunodes.gpushare.io")


def test_usage_is_readable_only_with_a_grant_in_the_namespace(installed: Cluster) -> None:
    installed.kubectl(
        *("-n", contract.SYSTEM_NAMESPACE, "create", "rolebinding", "usage"),
        *("--clusterrole=gpushare-usage-viewer", "--user=jane"),
    )
    try:
        for verb, resource in (("list", "pods"), ("get", "pods/proxy")):
            assert may(installed, "jane", verb, resource)
            assert not may(installed, "jane", verb, resource, namespace="default")
    finally:
        installed.kubectl("-n", contract.SYSTEM_NAMESPACE, "delete", "rolebinding", "usage")
    role = json.loads(installed.kubectl("get", "clusterrole", "gpushare-usage-viewer", "--output=json"))
    assert "labels" not in role["metadata"]  # it is not aggregated to any other role


def test_the_view_role_can_read_gpunodes(installed: Cluster) -> None:
    role = json.loads(installed.kubectl("get", "clusterrole", "gpushare-viewer", "--output=json"))
    ledger, profile = role["rules"]
    assert (ledger["resources"], ledger["verbs"]) == (["gpunodes"], ["get", "list", "watch"])
    assert (profile["resourceNames"], profile["verbs"]) == ([contract.PLACEMENT_CONFIG_MAP], ["get"])
    labels = role["metadata"]["labels"]
    assert labels["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
