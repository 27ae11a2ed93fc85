import json

import pytest

from gpushare.cluster import api_errors


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (400, "BadRequest", api_errors.Invalid),
        (401, "Unauthorized", api_errors.Unauthorized),
        (403, "Forbidden", api_errors.Forbidden),
        (404, "NotFound", api_errors.NotFound),
        (409, "Conflict", api_errors.Conflict),
        (409, "AlreadyExists", api_errors.AlreadyExists),
        (410, "Expired", api_errors.Gone),
        (410, "Gone", api_errors.Gone),
        (418, "", api_errors.ClusterError),
        (422, "Invalid", api_errors.Invalid),
        (429, "TooManyRequests", api_errors.Unavailable),
        (500, "InternalError", api_errors.Unavailable),
        (503, "ServiceUnavailable", api_errors.Unavailable),
        (504, "Timeout", api_errors.Unavailable),
    ],
)
def test_each_http_status_maps_to_its_error_class(
    status: int, reason: str, kind: type[api_errors.ClusterError]
) -> None:
    body = json.dumps({"kind": "Status", "message": "it is so", "reason": reason, "code": status})
    error = api_errors.from_answer(status, body, doing="PUT /x")
    assert type(error) is kind
    assert (error.status, error.reason) == (status, reason)
    assert str(error) == f"PUT /x: it is so (HTTP {status})"


@pytest.mark.parametrize("body", [b"<html>  bad\n gateway</html>", b"\xff\xfe", b"[1]", b"null", b""])
def test_answers_of_a_proxy_become_a_readable_error(body: bytes) -> None:
    error = api_errors.from_answer(502, body, doing="GET /x")
    assert isinstance(error, api_errors.Unavailable)
    assert str(error).startswith("GET /x: ")
    assert "\n" not in str(error)


@pytest.mark.parametrize("more", [[], "x", {"retryAfterSeconds": "soon"}, {"retryAfterSeconds": True}])
def test_an_invalid_retry_after_is_ignored(more: object) -> None:
    error = api_errors.from_status({"code": 503, "details": more}, doing="GET /x")
    assert isinstance(error, api_errors.Unavailable)
    assert error.retry_after_seconds is None


def test_the_retry_after_header_overrides_the_body() -> None:
    body = json.dumps({"kind": "Status", "details": {"retryAfterSeconds": 7}})
    by_header = api_errors.from_answer(429, body, doing="GET /x", retry_after_seconds=2.0)
    by_body = api_errors.from_answer(429, body, doing="GET /x")
    assert isinstance(by_header, api_errors.Unavailable)
    assert isinstance(by_body, api_errors.Unavailable)
    assert (by_header.retry_after_seconds, by_body.retry_after_seconds) == (2.0, 7)
