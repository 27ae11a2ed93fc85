"""A kubectl that answers from a file, and changes it as the placer and the agent would."""

from __future__ import annotations

import json
import sys
import urllib.parse
from pathlib import Path


def serve(path: str, mode: str) -> None:
    """`mode`: the fate of a patch: given, refused (more is in use), ignored (no placer runs), or denied."""
    state = json.loads(Path(path).read_text())
    words = sys.argv[1:]
    share = state["gpunodes"][0]["spec"]["allocations"][0]["shares"][0]
    if words[0] == "get":
        parts = urllib.parse.urlsplit(words[2]).path.rpartition("/")
        if parts[2] == "trainer":
            print(json.dumps(state["pods"][0]))
        elif parts[0] == "/api/v1/namespaces":
            metadata = {"name": parts[2], "annotations": state.get("namespace", {})}
            print(json.dumps({"kind": "Namespace", "metadata": metadata}))
        else:
            print(json.dumps({"kind": "List", "items": state.get(parts[2], []), "metadata": {"resourceVersion": "1"}}))
    elif words[0] == "patch":
        if mode == "denied":
            sys.exit('Error from server (Forbidden): pods "trainer" is forbidden: it says no')
        patch = json.loads(next(word for word in words if word.startswith("--patch=")).partition("=")[2])["metadata"]
        assert patch["uid"] == state["pods"][0]["metadata"]["uid"] and "--namespace=default" in words
        state["log"].append({**patch["annotations"], "dry": "--dry-run=server" in words})
        if "--dry-run=server" not in words:
            notes = state["pods"][0]["metadata"]["annotations"]
            notes.update(patch["annotations"])
            for key in [key for key in notes if notes[key] is None]:
                del notes[key]
            if mode == "given":
                share.update(memory=int(notes["gpushare.io/memory"][:-2]) << 30)
            elif mode == "refused" and notes["gpushare.io/memory"] == "4Gi":
                share["shrinkTo"] = 4 << 30
                word = {"allocation": "a1", "share": 0, "memory": 8 << 30, "used": 5583457485}
                state["gpunodes"][0]["status"]["resizes"] = [word]
        Path(path).write_text(json.dumps(state))
