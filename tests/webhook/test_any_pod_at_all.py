"""Any JSON that is sent as a pod gets an answer with a sentence; a valid pod causes no failure, an invalid one is
denied.
"""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

import hypothesis
import jsonpatch
import pytest
from hypothesis import strategies as st

from gpushare import codec, contract, ledger
from tests import builders
from tests.webhook.laws import strategies
from webhook import metrics, review
from webhook.admission import Admission
from webhook.pods import pod_manifest
from webhook.store.memory_store import MemoryStore
from webhook.store.reservation import Reservation

KEYS = st.sampled_from(
    ["name", "annotations", "labels", "spec", "containers", "env", "resources", "limits", "requests", "ports", "key"]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["NaN", "-1", "\u202e💥"]),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.one_of(KEYS, st.text(max_size=8)), inner)),
    max_leaves=12,
)
ASKED = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["0.5", "-0.5", "NaN", "nan", "inf", "1e309", "0x1", "٠.٥", "9" * 5000, "%", "1%", "8Gi", "", " 1 "]
    ),
)


def answer(pod: Any, **more: Any) -> tuple[review.ReviewResponse, MemoryStore]:
    store = MemoryStore([codec.to_document(builders.node(gpus=2))])
    admission = Admission(store, Reservation(store, policy="fragmentation"), metrics.Metrics())
    request = {"uid": "u", "operation": "CREATE", "namespace": "default", "object": pod, **more}
    body = json.dumps({"apiVersion": review.API_VERSION, "kind": "AdmissionReview", "request": request})
    return asyncio.run(admission.answer(review.read(body))), store


def judged(pod: Any) -> review.ReviewResponse:
    """Return the answer, after checks that hold for every answer."""
    response, store = answer(pod)
    assert response.outcome != "error", response.message
    assert response.code != 400 or pod_manifest.why_invalid(pod) or "need unique names" in response.message
    assert len(response.message) < 1000
    assert ledger.violations(store.view("node-a").node) == []  # type: ignore[union-attr]
    text = json.dumps(review.respond({"uid": "u", "operation": "CREATE", "object": {}}, response))
    assert json.loads(text)["response"]["allowed"] == response.allowed
    if response.allowed and response.patch:
        jsonpatch.apply_patch(json.loads(json.dumps(pod)), list(response.patch))
    return response


def put(pod: Any, path: list[int], value: Any) -> Any:
    """Return the pod with another value at the place that the numbers select."""
    if not path or not isinstance(pod, dict | list) or not pod:
        return value
    number = path[0] % len(pod)
    key = list(pod)[number] if isinstance(pod, dict) else number
    pod[key] = put(pod[key], path[1:], value)
    return pod


@pytest.mark.slow
@hypothesis.given(st.dictionaries(st.sampled_from(["metadata", "spec", "status", "kind"]), ANYTHING))
@hypothesis.settings(max_examples=40)
def test_any_object_is_answered(pod: dict[str, Any]) -> None:
    judged(pod)


@pytest.mark.slow
@hypothesis.given(strategies.pods(), st.lists(st.integers(0, 9), min_size=1, max_size=6), ANYTHING)
@hypothesis.settings(max_examples=80)
def test_pod_with_any_value_in_any_field_is_answered(pod: dict[str, Any], path: list[int], value: Any) -> None:
    judged(put(copy.deepcopy(pod), path, value))


@pytest.mark.slow
@hypothesis.given(
    st.dictionaries(st.sampled_from([*contract.REQUEST_KEYS, *contract.RESULT_KEYS, contract.REQUEST + ".main"]), ASKED)
)
@hypothesis.settings(max_examples=80)
def test_any_text_in_our_annotations_is_answered(annotations: dict[str, str]) -> None:
    pod = builders.pod()
    pod["metadata"]["annotations"] = annotations
    response = judged(pod)
    assert response.code in {200, 422, 403, 400}


@hypothesis.given(strategies.pods())
@hypothesis.settings(max_examples=20)
def test_made_up_pods_are_valid(pod: dict[str, Any]) -> None:
    assert pod_manifest.why_invalid(pod) is None


def test_object_that_is_no_pod_is_denied() -> None:
    pod = builders.pod(request="0.5")
    pod["spec"]["tolerations"] = [{"key": "a"}, {"key": 7}]
    assert pod_manifest.why_invalid(pod) == "spec.tolerations[1].key is not text: this is not a valid pod"
    pod["spec"]["containers"] = 7
    assert judged(pod).code == 400


@pytest.mark.parametrize("names", [["main", "main"], ["main", ""], [None]])
def test_containers_without_unique_names_are_denied(names: list[str | None]) -> None:
    pod = builders.pod(request="0.5")
    pod["spec"]["containers"] = [{"name": name} for name in names]
    response = judged(pod)
    assert (response.code, response.message) == (
        400,
        "spec.containers and spec.initContainers need unique names",
    )
