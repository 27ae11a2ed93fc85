"""Every right that gpushare has, and the calls of its programs on the API servers of these tests.

`tests/config/test_rbac.py` compares the rights that the API server reports with these tables. `tests/conftest.py`
checks after every run with an API server that no call exceeded them, and `tests/e2e/test_rights.py` that none is
superfluous.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpushare import contract
from lab import access, api_audit

Right = tuple[str, str]  # "RESOURCE[/SUBRESOURCE][.GROUP][/NAME]" and verb

READ = "get list watch"
DEFRAG = "gpushare-defrag"  # the ServiceAccount of config/components/defrag
EVERYWHERE = {
    contract.WEBHOOK_SERVICE_ACCOUNT: {
        "gpunodes.gpushare.io": f"{READ} update",
        "nodes": "list watch",
        "persistentvolumes": "list watch",
        "persistentvolumeclaims": "list watch",
        "storageclasses.storage.k8s.io": "list watch",
        "csinodes.storage.k8s.io": "list watch",
        "volumeattachments.storage.k8s.io": "list watch",
        "resourcequotas": "list watch",
        "namespaces": "list watch",
        "pods": f"{READ} patch",
        "pods/eviction": "create",
        "events.events.k8s.io": "create patch",
        "mutatingwebhookconfigurations.admissionregistration.k8s.io/gpushare": "get patch",
    },
    contract.AGENT_SERVICE_ACCOUNT: {
        "gpunodes.gpushare.io": f"{READ} create",
        "gpunodes/status.gpushare.io": "patch",
        "nodes": f"{READ} patch",
        "nodes/status": "patch",
        "pods": "list watch",
        "events.events.k8s.io": "create patch",
    },
    DEFRAG: {
        "gpunodes.gpushare.io": "get list patch",
        "nodes": "list",
        "persistentvolumes": "list",
        "persistentvolumeclaims": "list",
        "storageclasses.storage.k8s.io": "list",
        "csinodes.storage.k8s.io": "list",
        "volumeattachments.storage.k8s.io": "list",
        "poddisruptionbudgets.policy": "list",
        "pods": "get list",
        "pods/eviction": "create",
        "replicasets.apps": "get",
        "statefulsets.apps": "get",
        "replicationcontrollers": "get",
    },
}
AT_HOME = {
    contract.WEBHOOK_SERVICE_ACCOUNT: {
        "leases.coordination.k8s.io": "create",
        "leases.coordination.k8s.io/gpushare-placer": "get update",
        "secrets/gpushare-webhook-certificate": "get update",
        f"configmaps/{contract.PLACEMENT_CONFIG_MAP}": "list watch patch",
    },
    contract.AGENT_SERVICE_ACCOUNT: {f"configmaps/{contract.CONFIG_MAP}": "list watch"},
    DEFRAG: {f"configmaps/{contract.PLACEMENT_CONFIG_MAP}": "get"},
}
IN_DEMAND_NAMESPACE = {  # of config/components/demand, and of demand-gangs
    contract.WEBHOOK_SERVICE_ACCOUNT: {
        "pods": "create delete",
        f"podtemplates/{contract.DEMAND_TEMPLATE}": "get",
        "podtemplates": "list create delete",
        "provisioningrequests.autoscaling.x-k8s.io": "list create delete",
    },
}
IN_BORROW_NAMESPACE = {  # of config/components/borrow
    contract.WEBHOOK_SERVICE_ACCOUNT: {
        "pods": "create delete",
        f"podtemplates/{contract.BORROW_TEMPLATE}": "get",
    },
}
WITH_PREEMPTION = {contract.WEBHOOK_SERVICE_ACCOUNT: {"poddisruptionbudgets.policy": "list"}}  # the component
ACCOUNTS = sorted(set(EVERYWHERE) - {DEFRAG})  # of every installation
PROGRAMS = "gpushare-"  # the start of each program's User-Agent; tests that use its token have another


def expected(*tables: dict[str, str]) -> set[Right]:
    """Return the rights in some tables."""
    return {(what, verb) for table in tables for what, verbs in table.items() for verb in verbs.split()}


def needed(call: api_audit.ApiCall) -> Right | None:
    """Return the right that allows a call; None if the tables have none."""
    here = [EVERYWHERE.get(call.account, {}), WITH_PREEMPTION.get(call.account, {})]
    if call.namespace == contract.SYSTEM_NAMESPACE:
        here.append(AT_HOME.get(call.account, {}))
    if call.namespace == contract.DEMAND_NAMESPACE:
        here.append(IN_DEMAND_NAMESPACE.get(call.account, {}))
    if call.namespace == contract.BORROW_NAMESPACE:
        here.append(IN_BORROW_NAMESPACE.get(call.account, {}))
    candidates = [(call.resource, call.verb), (f"{call.resource}/{call.name}", call.verb)]
    return next((candidate for candidate in candidates if candidate in expected(*here)), None)


def beyond(calls: Iterable[api_audit.ApiCall]) -> list[api_audit.ApiCall]:
    """Return calls of gpushare's programs that no right allows.

    The authorizer's decision is not enough: an API server that has just started forbids calls before it has read the
    roles.
    """
    return sorted({call for call in calls if _is_of_a_program(call) and needed(call) is None}, key=repr)


def used(calls: Iterable[api_audit.ApiCall], account: str) -> set[Right]:
    """Return the rights of an account that its programs used."""
    own = (call for call in calls if call.account == account and _is_of_a_program(call))
    return {right for call in own if call.decision == "allow" and (right := needed(call)) is not None}


def used_on(administrator: access.Access, account: str) -> set[Right]:
    """Return the rights used on one API server so far; all rights for your own cluster, which has no such log."""
    if administrator.lab is None:
        return expected(EVERYWHERE[account], AT_HOME[account], IN_DEMAND_NAMESPACE.get(account, {}))
    return used(api_audit.calls(administrator.lab.audit_log), account)


def _is_of_a_program(call: api_audit.ApiCall) -> bool:
    """Whether a call comes from gpushare itself. Any client may discover the API, as the plugin's kubectl does."""
    if call.account == DEFRAG:
        return call.program.startswith("kubectl") and not call.resource.startswith("/")
    return call.program.startswith(PROGRAMS)
