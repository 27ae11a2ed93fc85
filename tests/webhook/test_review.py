"""AdmissionReview v1: requests and responses."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from webhook import review

REQUEST: review.AdmissionRequest = {"uid": "u-1", "operation": "CREATE", "object": {}}


def envelope(**changes: Any) -> str:
    return json.dumps({"apiVersion": review.API_VERSION, "kind": "AdmissionReview", "request": REQUEST, **changes})


def test_a_review_is_read() -> None:
    assert review.read(envelope()) == {**REQUEST, "syntax": ""}


def test_the_syntax_comes_from_the_path_alone() -> None:
    forged = envelope(request={**REQUEST, "syntax": "kai"})
    assert review.read(forged)["syntax"] == ""
    assert review.read(forged, syntax="hami")["syntax"] == "hami"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "is not an AdmissionReview"),
        (envelope(kind="Pod"), "is not an AdmissionReview"),
        (envelope(apiVersion="admission.k8s.io/v1beta1"), "not admission.k8s.io/v1"),
        (envelope(request={"operation": "CREATE", "object": {}}), "request.uid is missing"),
        (envelope(request={"uid": "u", "object": {}}), "request.operation is missing"),
        (envelope(request={"uid": "u", "operation": "CREATE", "object": None}), "request.object is missing"),
        (envelope(request={"uid": "u", "operation": "DELETE", "oldObject": None}), "request.oldObject is missing"),
    ],
)
def test_malformed_review_is_named(body: str, says: str) -> None:
    with pytest.raises(review.MalformedReviewError, match=says):
        review.read(body)


def test_a_patch_travels_in_base64() -> None:
    patch = [{"op": "add", "path": "/metadata/labels", "value": {"ü": "1"}}]
    response = review.respond(REQUEST, review.ReviewResponse("placed", patch=patch))["response"]
    assert response["uid"] == "u-1"
    assert response["allowed"] is True
    assert response["patchType"] == "JSONPatch"
    assert json.loads(base64.b64decode(response["patch"])) == patch


def test_without_changes_there_is_no_patch() -> None:
    response = review.respond(REQUEST, review.allow("ignored"))["response"]
    assert response == {"uid": "u-1", "allowed": True}


def test_a_denial_has_its_sentence_and_its_code() -> None:
    response = review.respond(REQUEST, review.deny(422, "write less"))["response"]
    assert response["allowed"] is False
    assert response["status"] == {"code": 422, "message": "write less", "reason": "Invalid"}
    assert response["auditAnnotations"] == {"decision": "denied: write less"}


def test_warnings_are_shortened_to_the_shown_length() -> None:
    response = review.respond(REQUEST, review.ReviewResponse("placed", warnings=("short", "x" * 300)))["response"]
    assert response["warnings"] == ["short", "x" * 127 + "…" + "x" * 128]


def test_long_warning_keeps_the_nearest_miss_at_its_end() -> None:
    sentence = (
        "waits for a GPU: no GPU fits " + "0.5 GPU with 100Gi and " * 12 + "; nearest: lab-node-0/0 has 40Gi in all"
    )
    (warning,) = review.respond(REQUEST, review.ReviewResponse("gated", warnings=(sentence,)))["response"]["warnings"]
    assert warning.startswith("waits for a GPU: no GPU fits")
    assert warning.endswith("nearest: lab-node-0/0 has 40Gi in all")
    assert len(warning) == review.MAX_WARNING
