"""Pushes the archives to a registry, by skopeo, which knows where credentials lie, and says what they are there."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from config.images import build, layers
from lab import lab_errors, prerequisites

PUSHED = "pushed.json"
# A host has a dot or a port, or is localhost: so container tools tell it from a folder of their default registry.
PREFIX = re.compile(
    r"(?:localhost|[\w-]+(?:\.[\w-]+)+|[\w-]+(?=:)|\[[0-9a-f:]+\])(?::\d+)?(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
)


def push(made: build.Archives, prefix: str, *, options: Sequence[str] = ()) -> dict[str, dict[str, str]]:
    """Push them below REGISTRY/PREFIX; return where each is.

    Raises:
        LabError: the name is none, or the registry refuses.
    """
    checked(prefix)
    places = {}
    for name, archive in made.by_name().items():
        tag = archive.name.rpartition(":")[2]
        repository = f"{prefix}/{name}"
        _copy(archive.path, f"{repository}:{tag}", options)
        places[name] = {"repository": repository, "tag": tag, "digest": archive.digest}
    return places


def record(places: Mapping[str, Mapping[str, str]], folder: Path = layers.BUILD) -> Path:
    """Write down where they are, for ./install.sh to take them from there."""
    path = folder / PUSHED
    path.write_text(json.dumps(places, indent=2) + "\n")
    return path


def checked(prefix: str) -> str:
    """A registry, and a folder in it if that is wanted.

    Raises:
        LabError: it is neither.
    """
    if not PREFIX.fullmatch(prefix):
        raise lab_errors.LabError(
            f"PUSH={prefix} is not a registry and folder; name them like registry.example.com/platform or "
            "127.0.0.1:5000"
        )
    return prefix


def _copy(archive: Path, target: str, options: Sequence[str]) -> None:
    # skopeo's policy is about foreign images; this one was built here. The digest is ours, so nothing may be repacked.
    command = [prerequisites.program("skopeo"), "--insecure-policy", "copy", "--quiet", "--all", "--preserve-digests"]
    result = subprocess.run(
        [*command, *options, f"oci-archive:{archive}", f"docker://{target}"],
        check=False,
        stderr=subprocess.PIPE,
        text=True,
    )
    if result.returncode:
        raise lab_errors.LabError(
            f"{target} was not pushed: {result.stderr.strip()}; log in by `skopeo login {target.partition('/')[0]}`, "
            "and give a registry without TLS PUSH_OPTIONS=--dest-tls-verify=false"
        )
