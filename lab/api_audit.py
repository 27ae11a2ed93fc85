"""The requests of gpushare's ServiceAccounts to a lab's API server, by its audit log.

The log has the account, the request and the response's code, without bodies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ACCOUNTS = "system:serviceaccounts:gpushare-system"
# A watch that still goes on has no ResponseComplete; every call that was answered has one of the other stages.
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
    """A call: by which account and program, and for what.

    id: the same at each of its stages. account: the ServiceAccount's name. program: the User-Agent. resource:
    `RESOURCE[/SUBRESOURCE][.GROUP]`, or the path of a non-resource request. code: the status of HTTP. decision: the
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
    """Read an audit log; a line that is being written is left out."""
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
