"""Pushes the archives to a registry with skopeo, which has the credentials, and records their references."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from config.images import build, layers
from lab import lab_errors, prerequisites

PUSHED = "pushed.json"
# A host has a dot or a port, or is localhost. By that, container tools distinguish it from a folder of their default
# registry.
PREFIX = re.compile(
    r"(?:localhost|[\w-]+(?:\.[\w-]+)+|[\w-]+(?=:)|\[[0-9a-f:]+\])(?::\d+)?(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
)


def push(made: build.Archives, prefix: str, *, options: Sequence[str] = ()) -> dict[str, dict[str, str]]:
    """Push the images to REGISTRY/FOLDER (`prefix`); return the reference of each.

    Raises:
        LabError: the prefix is invalid, or the registry refuses.
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
    """Record the references in a file that ./install.sh reads."""
    path = folder / PUSHED
    path.write_text(json.dumps(places, indent=2) + "\n")
    return path


def checked(prefix: str) -> str:
    """Return `prefix` if it is a registry, optionally with a folder.

    Raises:
        LabError: it is not.
    """
    if not PREFIX.fullmatch(prefix):
        raise lab_errors.LabError(
            f"PUSH={prefix} is not a registry and folder; name them like registry.example.com/platform or "
            "127.0.0.1:5000"
        )
    return prefix


def _copy(archive: Path, target: str, options: Sequence[str]) -> None:
    # skopeo's policy is for third-party images, and this one was built here. The recorded digest must match, so skopeo
    # must not repack anything.
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
