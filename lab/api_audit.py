"""Reads from a lab's audit log which requests gpushare's ServiceAccounts send to the API server.

The log has the account, the request and the response's code, without bodies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ACCOUNTS = "system:serviceaccounts:gpushare-system"
# RequestReceived is redundant: an open watch has ResponseStarted, and every answered request has another stage too.
POLICY = f"""\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  userGroups: ["{ACCOUNTS}"]
- level: None
"""


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A request to the API server.

    id: the same at each of its stages. account: the ServiceAccount's name. program: the User-Agent. resource:
    `RESOURCE[/SUBRESOURCE][.GROUP]`, or the path of a non-resource request. code: the HTTP status. decision: the
    authorizer's, `allow` or `forbid`.
    """

    id: str
    account: str
    program: str
    verb: str
    resource: str
    namespace: str
    name: str
    code: int
    decision: str


def calls(path: Path) -> Iterator[ApiCall]:
    """Read an audit log, without a line that is still being written."""
    if not path.exists():
        return
    with path.open() as lines:
        for line in lines:
            if line.endswith("\n"):
                yield _call(json.loads(line))


def _call(event: dict[str, object]) -> ApiCall:
    entry: dict[str, dict[str, str]] = event  # type: ignore[assignment]
    what = entry.get("objectRef") or {}
    plural, group = what.get("resource", ""), what.get("apiGroup", "")
    subresource = f"/{what['subresource']}" if what.get("subresource") else ""
    return ApiCall(
        id=str(event["auditID"]),
        account=entry["user"]["username"].rpartition(":")[2],
        program=str(event.get("userAgent", "")),
        verb=str(event["verb"]),
        resource=plural + subresource + (f".{group}" if group else "") or str(event["requestURI"]),
        namespace=what.get("namespace", ""),
        name=what.get("name", ""),
        code=int((entry.get("responseStatus") or {}).get("code", 0)),
        decision=(entry.get("annotations") or {}).get("authorization.k8s.io/decision", ""),
    )
