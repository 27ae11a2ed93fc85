"""Writes the kustomization that ./install.sh applies, into a separate folder: the checkout does not change.

`kubectl kustomize FOLDER` then prints config/default with the chosen images, components and the kubelet's directory. It
needs nothing but Python, so it runs before there is any environment.

Run: python3 config/overlay.py FOLDER [--registry REGISTRY/PREFIX] [--component NAME]... [--kubelet-root DIRECTORY]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

CONFIG = Path(__file__).resolve().parent
PUSHED = CONFIG.parent / "build" / "images" / "pushed.json"  # written by `make images PUSH=REGISTRY/PREFIX`
PARTS = ("webhook", "agent", "plugin")
KUBELET = "/var/lib/kubelet"  # as config/base/deviceplugin has it
RECORD = "gpushare.io/components"  # annotation of the agent's DaemonSet, which the next ./install.sh reads
# Others add to the constraints of `openshift`; `driver-root` refers to volumes by index; `runtime-class` and `opt-in`
# refer to objects of `mps`; of two --cgroup-root the last one is used, and `driver-memory` has to write there.
# "": all others.
ORDER = ("openshift", "cdi", "driver-root", "", "runtime-class", "opt-in", "deny-unregistered", "driver-memory")
NEEDS = {"demand-gangs": "demand"}  # another component
_PREFIX = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")


class Mistake(Exception):  # noqa: N818 - a sentence about an argument
    """An invalid argument; the message is for people."""


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The differences from config/default."""

    registry: str = ""
    components: Sequence[str] = ()
    kubelet_root: str = ""
    pushed: Path = PUSHED


def write(folder: Path, wanted: Wanted) -> None:
    """Fill an empty folder. Raises `Mistake`."""
    components, kubelet_root = wanted.components, wanted.kubelet_root
    known = sorted(path.parent.name for path in CONFIG.glob("components/*/kustomization.yaml"))
    for name in components:
        if name not in known:
            raise Mistake(f"--component {name} does not exist: write one of {', '.join(known)}")
        if (needed := NEEDS.get(name, name)) not in components:
            remedy = f"write --component {needed} as well, or --without-component {name}"
            raise Mistake(f"--component {name} needs {needed}: {remedy}")
    if kubelet_root and not kubelet_root.startswith("/"):
        raise Mistake(f"--kubelet-root {kubelet_root}: write an absolute path, such as {KUBELET}")
    shutil.copytree(CONFIG, folder / "config", ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    chosen = sorted(dict.fromkeys(components), key=lambda name: ORDER.index(name if name in ORDER else ""))
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["config/default"],
        "components": [f"config/components/{name}" for name in chosen],
        "images": list(images(wanted.registry, wanted.pushed)),
        "patches": [_agent(chosen, kubelet_root.rstrip("/") or KUBELET)],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(document, indent=2))


def images(registry: str, pushed: Path) -> Iterator[dict[str, str]]:
    """Yield entries of `images`: by digest if they were pushed from here, else by the manifests' tag."""
    if registry and not _PREFIX.fullmatch(registry):
        raise Mistake(f"--registry {registry}: write REGISTRY/PREFIX, as in registry.example.org/team/gpushare")
    references = _pushed(pushed)
    for part in PARTS:
        name = f"localhost/gpushare/{part}"
        entry = references.get(part)
        if entry is not None and (not registry or entry["repository"] == f"{registry}/{part}"):
            yield {"name": name, "newName": entry["repository"], "digest": entry["digest"]}
        elif registry:
            yield {"name": name, "newName": f"{registry}/{part}"}


def _pushed(path: Path) -> dict[str, dict[str, str]]:
    try:
        text = path.read_text()
    except FileNotFoundError:
        return {}
    try:
        parts = json.loads(text)
        known = [part for part in PARTS if part != "plugin" or part in parts]  # built only with a kubectl
        return {part: {key: str(parts[part][key]) for key in ("repository", "digest")} for part in known}
    except (ValueError, KeyError, TypeError) as error:
        raise Mistake(f"{path} is invalid ({error}): run make images PUSH=REGISTRY/PREFIX again") from error


def _agent(components: Sequence[str], root: str) -> dict[str, Any]:
    """Return a patch that records the components, and sets the directories on the host."""
    volumes = [{"name": name, "hostPath": {"path": f"{root}/{name}"}} for name in ("device-plugins", "pod-resources")]
    patch = {
        "kind": "DaemonSet",
        "apiVersion": "apps/v1",
        "metadata": {"name": "gpushare-agent", "annotations": {RECORD: " ".join(components)}},
        **({"spec": {"template": {"spec": {"volumes": volumes}}}} if root != KUBELET else {}),
    }
    return {"target": {"kind": "DaemonSet", "name": "gpushare-agent"}, "patch": json.dumps(patch)}


def main(words: Sequence[str]) -> int:
    """Run it; return the exit code."""
    parser = argparse.ArgumentParser(description="Write the kustomization that ./install.sh applies")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--registry", default="")
    parser.add_argument("--component", action="append", default=[])
    parser.add_argument("--kubelet-root", default="")
    parser.add_argument("--pushed", type=Path, default=PUSHED)
    options = parser.parse_args(words)
    wanted = Wanted(options.registry, options.component, options.kubelet_root, options.pushed)
    try:
        write(options.folder, wanted)
    except Mistake as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
