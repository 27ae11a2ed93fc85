"""A pod that the ResourceQuotas of its namespace will reject gets no share."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare import contract, resource_quota
from gpushare import request as requests
from tests import builders
from tests.builders import GIB
from tests.scripted_api import ScriptedApi
from webhook.store import reservation_limits

PERCENT, MEMORY = contract.RESOURCE_PERCENT, contract.RESOURCE_MEMORY


def quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"namespace": "team", "name": "gpus", "uid": "u", "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"hard": hard, **spec}, "status": {"hard": hard, "used": used or {}}}


def lacks(item: dict[str, Any], asked: dict[str, int]) -> str | None:
    limits = resource_quota.read(item)
    return None if limits is None else limits.lacks(asked)


@pytest.mark.parametrize(
    ("hard", "used", "asked", "said"),
    [
        ({f"requests.{PERCENT}": "0"}, {}, {PERCENT: 100}, f"leaves 0 of {PERCENT}, 100 are requested"),
        ({f"requests.{PERCENT}": "200"}, {f"requests.{PERCENT}": "100"}, {PERCENT: 100}, None),
        ({f"requests.{PERCENT}": "199"}, {f"requests.{PERCENT}": "100"}, {PERCENT: 100}, f"leaves 99 of {PERCENT}"),
        ({f"requests.{MEMORY}": "8Gi"}, {f"requests.{MEMORY}": "4Gi"}, {MEMORY: 5 * GIB}, "leaves 4Gi of"),
        ({"requests.cpu": "1"}, {"requests.cpu": "500m"}, {"cpu": 501}, "leaves 500m of cpu, 501m are requested"),
        ({"cpu": "1"}, {}, {"cpu": 1000}, None),
        ({"pods": "3"}, {"pods": "3"}, {"pods": 1}, "leaves 0 of pods, 1 are requested"),
        ({"limits.cpu": "0", "count/pods": "0", "services": "0"}, {}, {"cpu": 1, "pods": 1}, None),
        ({f"requests.{PERCENT}": "many"}, {}, {PERCENT: 1}, f"leaves 0 of {PERCENT}"),
        ({f"requests.{PERCENT}": "0"}, {}, {MEMORY: 1}, None),
    ],
)
def test_amounts_beyond_the_quota_are_lacking(
    hard: dict[str, str], used: dict[str, str], asked: dict[str, int], said: str | None
) -> None:
    sentence = lacks(quota(hard, used), asked)
    assert (sentence is None) if said is None else said in str(sentence)


@pytest.mark.parametrize(
    ("resources", "asked", "said"),
    [
        ([MEMORY], {"memory": "25%"}, 'container "main" requests 25% of a GPU\'s memory, but the ResourceQuota gpus'),
        ([MEMORY], {"memory": "100%", "request": "0.01"}, 'write gpushare.io/memory in bytes, such as "10Gi"'),
        ([MEMORY], {"request": "0.5"}, "requests 50% of a GPU's memory"),
        ([MEMORY], {"request": "0.5", "memory": "10Gi"}, None),
        ([MEMORY, PERCENT], {"request": "0.5"}, None),
        ([MEMORY, PERCENT], {"request": "0.5", "memory": "50%"}, None),
        ([MEMORY, PERCENT], {"request": "0.5", "memory": "51%"}, "requests 51% of a GPU's memory"),
        ([PERCENT], {"request": "0.01", "memory": "100%"}, None),
        ([], {"request": "0.01", "memory": "100%"}, None),
    ],
)
def test_memory_by_percent_needs_a_quota_that_counts_it(
    resources: list[str], asked: dict[str, str], said: str | None
) -> None:
    allowance = resource_quota.read(quota({f"requests.{name}": "0" for name in resources}))
    manifest = builders.pod(**asked)
    quotas = [allowance] if allowance is not None else []
    sentence = resource_quota.uncounted(quotas, manifest, requests.parse(manifest))
    assert (sentence is None) if said is None else said in str(sentence)


@pytest.mark.parametrize(
    ("resources", "together", "said"),
    [
        ([PERCENT], "warm,main", "would count 60 of gpushare.io/gpu-percent, but the shares of the pod take 120"),
        ([MEMORY], "warm,main", "would count 8Gi of gpushare.io/gpu-memory, but the shares of the pod take 16Gi"),
        ([PERCENT, MEMORY], "main,warm", None),
        ([PERCENT, MEMORY], "main", None),
        ([PERCENT, MEMORY], "warm", None),  # it ends before the other begins
        (["cpu"], "warm,main", None),
    ],
)
def test_steps_of_containers_are_counted_with_other_shares(
    resources: list[str], together: str, said: str | None
) -> None:
    allowance = resource_quota.read(quota({f"requests.{name}": "0" for name in resources}))
    assert allowance is not None
    own = {"request.side": "0.6", "memory.side": "8Gi"}
    manifest = builders.pod(containers=("main", "side"), container=together, request="0.6", memory="8Gi", **own)
    manifest["spec"]["initContainers"] = [{"name": "warm"}]
    sentence = resource_quota.uncounted([allowance], manifest, requests.parse(manifest))
    assert (sentence is None) if said is None else said in str(sentence)
    alone = builders.pod(container=together, request="0.6", memory="8Gi")
    alone["spec"]["initContainers"] = [{"name": "warm"}]
    assert resource_quota.uncounted([allowance], alone, requests.parse(alone)) is None


@pytest.mark.parametrize(
    ("hard", "is_evaded"),
    [
        ([{"requests.nvidia.com/gpumem": "0"}], True),
        ([{"requests.cpu": "1"}, {"requests.nvidia.com/gpu": "8"}], True),
        ([{"requests.nvidia.com/gpucores": "0"}], False),  # the pod has none
        ([{"requests.nvidia.com/gpumem": "0"}, {f"requests.{PERCENT}": "100"}], False),
        ([], False),
    ],
)
def test_a_quota_on_resources_that_a_share_replaces_is_evaded(hard: list[dict[str, str]], is_evaded: bool) -> None:
    quotas = [allowance for each in hard if (allowance := resource_quota.read(quota(each))) is not None]
    sentence = resource_quota.evaded(quotas, {"nvidia.com/gpu", "nvidia.com/gpumem"})
    assert (sentence is not None) == is_evaded
    assert not sentence or "the ResourceQuota gpus of its namespace counts nvidia.com/gpu" in sentence


@pytest.mark.parametrize("spec", [{"scopes": ["BestEffort"]}, {"scopeSelector": {"matchExpressions": []}}, {}])
def test_scoped_quota_is_left_to_the_api_server(spec: dict[str, Any]) -> None:
    document = quota({f"requests.{PERCENT}": "0"}, scopes=spec.get("scopes"), scopeSelector=spec.get("scopeSelector"))
    document["spec"]["scopeSelector"] = {"matchExpressions": [{}]} if "scopeSelector" in spec else None
    assert (lacks(document, {PERCENT: 1}) is None) == bool(spec)


async def test_allowances_follow_the_quotas() -> None:
    api = ScriptedApi()
    known = reservation_limits.QuotaAllowances(api)
    quotas = known.informer
    api.tell(reservation_limits.QUOTAS_PATH, {"type": "ADDED", "object": quota({f"requests.{PERCENT}": "0"})})
    assert known.lacks("team", {PERCENT: 1}) is None
    await quotas.step()
    assert known.lacks("team", {PERCENT: 1}) == (
        f"the ResourceQuota gpus of its namespace leaves 0 of {PERCENT}, 1 are requested"
    )
    assert known.lacks("another", {PERCENT: 1}) is None
    api.tell(reservation_limits.QUOTAS_PATH, {"type": "DELETED", "object": quota({})})
    await quotas.step()
    assert known.lacks("team", {PERCENT: 1}) is None


async def test_the_bound_on_exclusive_gpus_follows_the_quotas() -> None:
    api = ScriptedApi()
    known = reservation_limits.QuotaAllowances(api)
    quotas = known.informer
    assert known.bound("team") is None
    api.tell(reservation_limits.QUOTAS_PATH, {"type": "ADDED", "object": quota({f"requests.{PERCENT}": "250"})})
    await quotas.step()
    bound = known.bound("team")
    assert bound is not None
    assert (bound.quota, bound.most_gpus) == ("gpus", 2)
    assert known.bound("another") is None
    api.tell(reservation_limits.QUOTAS_PATH, {"type": "DELETED", "object": quota({})})
    await quotas.step()
    assert known.bound("team") is None
