"""AdmissionReview v1: requests of the API server, and the responses we may give.

Format:
https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#webhook-request-and-response A
denial has HTTP status 200. Any other status counts as a failed webhook, and its message does not reach the user.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NotRequired, TypedDict

from gpushare import errors

API_VERSION: Final = "admission.k8s.io/v1"
MAX_MESSAGE: Final = 1000  # characters
MAX_WARNING: Final = 256  # characters; the API server truncates longer ones if there are many

# HTTP status of a denial -> the reason that clients show before the sentence.
_REASONS: Final[Mapping[int, str]] = {
    400: "BadRequest",
    403: "Forbidden",
    422: "Invalid",
    500: "InternalError",
    503: "ServiceUnavailable",
}


class AdmissionRequest(TypedDict):
    """The fields of an AdmissionReview's `request` that we read."""

    uid: str
    operation: str
    namespace: NotRequired[str]
    name: NotRequired[str]
    dryRun: NotRequired[bool]
    resource: NotRequired[Mapping[str, str]]
    subResource: NotRequired[str]
    syntax: NotRequired[str]  # not in an AdmissionReview: from the path, the sharer's syntax to translate
    object: Mapping[str, Any]


Operation = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class ReviewResponse:
    """Our response to a request. `outcome` is a word for metrics and logs: placed, gated, denied, …"""

    outcome: str
    allowed: bool = True
    code: int = 200
    message: str = ""
    patch: Sequence[Operation] = ()
    warnings: tuple[str, ...] = ()
    audit: Mapping[str, str] = dataclasses.field(default_factory=dict)


class MalformedReviewError(ValueError):
    """The body is not an AdmissionReview v1 with a pod; the message says what is missing."""


def allow(outcome: str) -> ReviewResponse:
    return ReviewResponse(outcome)


def deny(code: int, message: str, *, outcome: str = "denied") -> ReviewResponse:
    """Deny with a sentence, which may quote the user; `code` is the HTTP status that the client sees."""
    message = errors.shortened(message, longest=MAX_MESSAGE)
    return ReviewResponse(outcome, False, code, message, audit={"decision": f"{outcome}: {message}"})


def read(body: bytes | str, *, syntax: str = "") -> AdmissionRequest:
    try:
        review = json.loads(body)
    except ValueError as error:
        raise MalformedReviewError(f"the body is not JSON: {error}") from error
    except RecursionError:
        raise MalformedReviewError("the body is nested too deeply") from None
    if not isinstance(review, dict) or review.get("kind") != "AdmissionReview":
        raise MalformedReviewError("the body is not an AdmissionReview")
    if review.get("apiVersion") != API_VERSION:
        raise MalformedReviewError(f"apiVersion is {errors.shown(review.get('apiVersion'))}, not {API_VERSION}")
    request = review.get("request")
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str) or not request["uid"]:
        raise MalformedReviewError("request.uid is missing")
    if not isinstance(request.get("operation"), str):
        raise MalformedReviewError("request.operation is missing")
    key = "oldObject" if request["operation"] == "DELETE" else "object"  # a deleted object is sent as it was
    if not isinstance(request.get(key), dict):
        raise MalformedReviewError(f"request.{key} is missing")
    request["object"], request["syntax"] = request[key], syntax
    return request  # type: ignore[return-value]


def respond(request: AdmissionRequest, answer: ReviewResponse) -> dict[str, Any]:
    response: dict[str, Any] = {"uid": request["uid"], "allowed": answer.allowed}
    if not answer.allowed:
        reason = _REASONS.get(answer.code, "Forbidden")
        response["status"] = {"code": answer.code, "message": answer.message, "reason": reason}
    elif answer.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(list(answer.patch)).encode()).decode()
    if answer.warnings:
        response["warnings"] = [cut(warning) for warning in answer.warnings]
    if answer.audit:
        response["auditAnnotations"] = dict(answer.audit)
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def cut(sentence: str, *, longest: int = MAX_WARNING) -> str:
    """Shorten a sentence to `longest` characters by cutting its middle: its end has the nearest miss."""
    if len(sentence) <= longest:
        return sentence
    rest = longest // 2
    return f"{sentence[: longest - rest - 1]}…{sentence[-rest:]}"
