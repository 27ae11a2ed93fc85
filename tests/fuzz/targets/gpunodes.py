"""A GPUNode as JSON, decoded and encoded again."""

from __future__ import annotations

import json

from gpushare import codec, errors, ledger
from tests.fuzz import laws


def run(data: bytes) -> None:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(document, dict):
        return
    if isinstance(document.get("held"), str):
        _held(document["held"])
    if isinstance(document.get("metadata"), dict) and isinstance(document["metadata"].get("name"), str):
        document["metadata"]["name"] = document["metadata"]["name"] and "gpu-1"  # the API server rejects invalid names
    try:
        node = codec.read(document)
    except errors.CodecError as error:
        laws.check_sentence(error)
        return
    for problem in node.problems:
        laws.check_sentence(problem)
    for violation in ledger.violations(node):
        laws.check_sentence(violation)
    written = json.loads(json.dumps(codec.to_document(node)))
    again = codec.read(written)
    assert again.allocations == node.allocations
    assert again.gpus == node.gpus
    assert json.dumps(codec.to_document(again)) == json.dumps(codec.to_document(node))


def _held(text: str) -> None:
    try:
        shares = codec.read_shares(text)
    except errors.CodecError as error:
        laws.check_sentence(error)
        return
    assert codec.read_shares(codec.shares_text(shares))
