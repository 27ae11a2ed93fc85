"""Reads and writes a ledger as a release does."""

from __future__ import annotations

from typing import Any

from gpushare import codec, errors, ledger
from gpushare import request as requests


def reads(document: dict[str, Any]) -> dict[str, Any]:
    node = codec.read(document)
    parts = {"spec": codec.to_spec(node), "status": codec.to_status(node), "problems": list(node.problems)}
    return {**parts, "violations": list(map(str, ledger.violations(node)))}


def reads_shares(text: str) -> str:
    return codec.shares_text(codec.read_shares(text))


def request_error(manifest: dict[str, Any]) -> str:
    try:
        requests.parse(manifest)
    except errors.RequestError as error:
        return str(error)
    return ""
