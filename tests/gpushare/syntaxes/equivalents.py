"""The rows of the tables in docs/moving-in.md, and a pod that says what a row says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gpushare import contract
from gpushare.syntaxes.translation import SYNTAXES, Syntax
from tests import builders

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "moving-in.md"
ENVIRONMENT: Final = "GPU_CORE_UTILIZATION_POLICY"
Row = tuple[Syntax, str, str]


def rows() -> Iterator[Row]:
    for title, section in re.findall(r"(?ms)^### (.+?)$(.*?)(?=^##|\Z)", PAGE.read_text()):
        (syntax,) = (each for each in SYNTAXES.values() if each.title == title)
        for theirs, ours in re.findall(r"(?m)^\| (`.*) \| (.*) \|$", section):
            yield syntax, theirs, ours


def pairs(cell: str) -> dict[str, str]:
    """Return the keys and values in a cell: `key: value`, `key: "value"`."""
    spans = re.findall(r"`([^`]+)`", cell)
    return {key: value.strip('"') for key, _, value in (span.partition(": ") for span in spans)}


def pod_with(syntax: Syntax, written: dict[str, str]) -> dict[str, Any]:
    """Build a pod with each of these where the sharer expects it."""
    container: dict[str, Any] = {
        "name": "main",
        "image": "x",
        "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
    }
    metadata: dict[str, Any] = {"name": "trainer", "annotations": {"kept": "yes"}, "labels": {"kept": "yes"}}
    for key, value in written.items():
        if key in {*syntax.marks.resources, syntax.marks.count} or key.startswith("nvidia.com/gpu."):
            container["resources"]["limits"][key] = container["resources"]["requests"][key] = value
        elif key == ENVIRONMENT:
            container["env"] = [{"name": key, "value": value}]
        elif key == "aliyun.com/gpu-count" or key.startswith("sharedgpu/"):
            metadata["labels"][key] = value
        else:
            metadata["annotations"][key] = value
    scheduler = next(iter(syntax.marks.schedulers), "own")
    spec = {"containers": [container], "schedulerName": scheduler}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


CONTAINERS = ("sidecar", "main")


def asking(limits: dict[str, dict[str, str]] | None = None, **metadata: dict[str, str]) -> dict[str, Any]:
    """Build a pod with these resources by container, and with these annotations and labels."""
    manifest = builders.pod(containers=CONTAINERS)
    manifest["metadata"] = {"name": "trainer", **metadata}
    for container in manifest["spec"]["containers"]:
        if amounts := (limits or {}).get(container["name"]):
            container["resources"] = {"limits": amounts, "requests": amounts}
    return manifest


def without() -> list[dict[str, Any]]:
    """Return pods that ask in no syntax, although some look like it."""
    return [
        asking(),
        asking({"main": {"nvidia.com/gpu": "1"}}),  # a whole GPU, in Kubernetes' own syntax
        asking({"main": {"nvidia.com/gpumem": "0"}}),
        asking({"main": {"nvidia.com/gpumem": "3000"}}, labels={"hami.io/webhook": "ignore"}),
        asking(annotations={"nvidia.com/use-gputype": "A100"}),  # of HAMi or of Volcano, but asks for nothing
        asking(annotations={"gpu-fraction": "0.5", contract.MIRROR_ANNOTATION: "x"}),
    ]
