"""Each row of the tables in docs/moving-in.md is what the translation does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from gpushare import contract, errors, pod, request
from gpushare.syntaxes import translation
from gpushare.syntaxes.translation import SYNTAXES, Syntax

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
    container: dict[str, Any] = {"name": "main", "image": "x", "resources": {"limits": {"cpu": "1"}, "requests": {}}}
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


@pytest.mark.parametrize("row", [pytest.param(row, id=f"{row[0].name}: {row[1]}") for row in rows()])
def test_each_row_of_the_tables(row: Row) -> None:
    syntax, theirs, ours = row
    manifest = pod_with(syntax, pairs(theirs))
    if ours.startswith("refused: "):
        with pytest.raises(errors.GpushareError) as caught:
            translation.translate(manifest)
        assert ours.removeprefix("refused: ") in str(caught.value)
        return
    found = translation.translate(manifest)
    assert found is not None
    assert found.syntax is syntax
    assert dict(found.spelled) == pairs(ours)

    after = found.manifest
    assert translation.translate(after) is None
    assert pod.annotations_of(after) == {"kept": "yes"} | pairs(ours)
    assert after["metadata"]["labels"] == {"kept": "yes"}
    (container,) = after["spec"]["containers"]
    assert container["resources"] == {"limits": {"cpu": "1"}, "requests": {}}
    assert after["spec"]["schedulerName"] == ("default-scheduler" if syntax.marks.schedulers else "own")
    request.parse(after)


def test_every_syntax_has_rows_of_both_kinds() -> None:
    kinds = {(syntax.name, ours.startswith("refused: ")) for syntax, _, ours in rows()}
    assert kinds == {(name, refused) for name in SYNTAXES for refused in (False, True)}


def test_the_page_names_every_label() -> None:
    labels = re.findall(r"(?m)^\| `(gpushare\.io/understand-[a-z]+)` \|", PAGE.read_text())
    assert labels == [f"{contract.UNDERSTAND_PREFIX}{name}" for name in SYNTAXES]
