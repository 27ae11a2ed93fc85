"""Laws of the mutation, for pods of every shape."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import contract, placement
from gpushare import request as requests
from gpushare.refusal import Refusal
from tests import builders
from tests.webhook.laws import strategies
from webhook.pods import mutation, validation
from webhook.pods.pod_manifest import PodSpecView

pytestmark = pytest.mark.slow

REFUSAL = Refusal("no GPU fits: there is none")
VARIABLES = {
    contract.ENV_VISIBLE_DEVICES,
    contract.ENV_REQUEST,
    contract.ENV_LIMIT,
    contract.ENV_MEMORY,
    contract.ENV_MEMORY_LIMIT,
}


def outcomes(request: requests.Request) -> tuple[mutation.Placed, Refusal]:
    node = builders.node(gpus=16)
    result = placement.place(builders.views(node), request)
    assert not isinstance(result, Refusal), result.reason
    return mutation.Placed("identity", node.name, "node-a.example", result.shares), REFUSAL


def read(manifest: dict[str, Any]) -> requests.Request:
    request = validation.read(PodSpecView.read(manifest))
    assert not isinstance(request, validation.Denial), request
    return request


def apply(manifest: dict[str, Any], patch: list[dict[str, Any]]) -> dict[str, Any]:
    # As they travel: without objects that are in several places at once.
    applied: dict[str, Any] = jsonpatch.apply_patch(json.loads(json.dumps(manifest)), json.loads(json.dumps(patch)))
    return applied


def without_ours(manifest: Any, sharers: set[str]) -> dict[str, Any]:
    """Return the pod without gpushare's fields; empty fields count as absent."""
    left: dict[str, Any] = copy.deepcopy(dict(manifest))
    metadata, spec = left["metadata"], left["spec"]
    metadata["annotations"] = {k: v for k, v in metadata["annotations"].items() if not requests.is_result_key(k)}
    metadata["labels"] = {k: v for k, v in (metadata.get("labels") or {}).items() if k != contract.SHARE_LABEL}
    spec["nodeSelector"] = {k: v for k, v in (spec.get("nodeSelector") or {}).items() if k != contract.HOSTNAME_LABEL}
    spec["schedulingGates"] = [
        gate for gate in spec.get("schedulingGates") or [] if gate["name"] != contract.SCHEDULING_GATE
    ]
    for container in (*spec["containers"], *spec.get("initContainers", [])):
        ours = VARIABLES if container["name"] in sharers else {contract.ENV_VISIBLE_DEVICES}
        container["env"] = [entry for entry in container.get("env") or [] if entry["name"] not in ours]
        if container["name"] in sharers:
            declared = container.get("resources") or {}
            container["resources"] = {
                side: {k: v for k, v in (declared.get(side) or {}).items() if not k.startswith(contract.PREFIX)}
                for side in ("limits", "requests")
            }
    return left


@given(strategies.pods())
def test_a_rewritten_pod_needs_no_patch(manifest: dict[str, Any]) -> None:
    request = read(manifest)
    for outcome in outcomes(request):
        after = mutation.rewrite(manifest, request, outcome)
        assert apply(manifest, mutation.patch(manifest, after)) == after
        assert mutation.patch(after, mutation.rewrite(after, read(dict(after)), outcome)) == []


@given(strategies.pods())
def test_rewrite_changes_only_gpushares_fields(manifest: dict[str, Any]) -> None:
    request = read(manifest)
    sharers = {name for demand in request.demands for name in demand.containers}
    before = copy.deepcopy(manifest)
    for outcome in outcomes(request):
        after = mutation.rewrite(manifest, request, outcome)
        assert without_ours(after, sharers) == without_ours(manifest, sharers)
    assert manifest == before


@given(strategies.pods())
def test_patch_changes_only_paths_of_ours(manifest: dict[str, Any]) -> None:
    request = read(manifest)
    ours = ("/metadata/annotations", "/metadata/labels", "/spec/nodeSelector", "/spec/schedulingGates")
    for outcome in outcomes(request):
        for operation in mutation.patch(manifest, mutation.rewrite(manifest, request, outcome)):
            for path in filter(None, (operation["path"], operation.get("from"))):
                parts = path.split("/")
                in_container = parts[2:3] in (["containers"], ["initContainers"]) and parts[4] in {"env", "resources"}
                assert path.startswith(ours) or in_container, operation


@given(strategies.pods())
def test_a_placed_pod_carries_exactly_its_shares(manifest: dict[str, Any]) -> None:
    request = read(manifest)
    placed, _ = outcomes(request)
    after = mutation.rewrite(manifest, request, placed)
    everyone = {
        container["name"]: container
        for container in (*after["spec"]["containers"], *after["spec"].get("initContainers", []))
    }
    for demand in request.demands:
        percent = [
            int((everyone[name]["resources"]["requests"]).get(contract.RESOURCE_PERCENT, 0))
            for name in demand.containers
        ]
        assert sum(percent) == demand.share.request_percent * demand.gpus
        for name in demand.containers:
            last = [entry for entry in everyone[name]["env"] if entry["name"] == contract.ENV_VISIBLE_DEVICES][-1]
            uuids = last["value"].split(",")
            assert len(set(uuids)) == len(uuids) == demand.gpus
            assert after["metadata"]["annotations"][mutation.uuids_annotation(request, name)] == last["value"]
            # The kubelet asks the agent about this container only if it has a positive amount.
            assert any(everyone[name]["resources"]["limits"].get(key, "0") != "0" for key in _DEVICES)


_DEVICES = (contract.RESOURCE_PERCENT, contract.RESOURCE_IDLE)


@given(strategies.pods(), st.booleans())
def test_ungated_pod_equals_one_that_was_placed_at_once(manifest: dict[str, Any], again: bool) -> None:
    request = read(manifest)
    placed, refusal = outcomes(request)
    gated = mutation.rewrite(manifest, request, refusal)
    if again:
        gated = mutation.rewrite(gated, request, refusal)
    opened = mutation.open_gate(gated, request, placed)
    at_once = mutation.rewrite(manifest, request, placed)
    assert opened["metadata"] == at_once["metadata"]
    assert opened["spec"]["nodeSelector"] == at_once["spec"]["nodeSelector"]
    assert contract.SCHEDULING_GATE not in [gate["name"] for gate in opened["spec"].get("schedulingGates", [])]
    # Of a pod that is stored, nothing else may change.
    fixed = {key: value for key, value in gated["spec"].items() if key not in {"nodeSelector", "schedulingGates"}}
    assert fixed == {k: v for k, v in opened["spec"].items() if k not in {"nodeSelector", "schedulingGates"}}


@given(strategies.pods())
def test_user_chosen_host_is_distinguished_from_ours(manifest: dict[str, Any]) -> None:
    request = read(manifest)
    own = (manifest["spec"].get("nodeSelector") or {}).get(contract.HOSTNAME_LABEL)
    if own is not None and contract.ALLOCATION in manifest["metadata"]["annotations"]:
        own = manifest["metadata"]["annotations"].get(contract.OWN_HOSTNAME)  # a copy of a pod that was placed
    for outcome in outcomes(request):
        after = mutation.rewrite(manifest, request, outcome)
        again = mutation.rewrite(after, request, outcome)
        for pod in (after, again):
            noted = pod["metadata"]["annotations"].get(contract.OWN_HOSTNAME)
            assert noted == (own if isinstance(outcome, mutation.Placed) else None)
