"""Reads and writes a ledger as a release does."""

from __future__ import annotations

from typing import Any

from gpushare import codec, ledger


def reads(document: dict[str, Any]) -> dict[str, Any]:
    node = codec.read(document)
    parts = {"spec": codec.to_spec(node), "status": codec.to_status(node), "problems": list(node.problems)}
    return {**parts, "violations": list(map(str, ledger.violations(node)))}


def reads_shares(text: str) -> str:
    return codec.shares_text(codec.read_shares(text))
