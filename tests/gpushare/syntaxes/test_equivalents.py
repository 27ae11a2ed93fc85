"""Each row of the tables in docs/moving-in.md is what the translation does."""

from __future__ import annotations

import re

import pytest

from gpushare import contract, errors, pod, request
from gpushare.syntaxes import translation
from gpushare.syntaxes.translation import SYNTAXES
from tests.gpushare.syntaxes.equivalents import PAGE, Row, pairs, pod_with, rows


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
    assert container["resources"] == {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}
    assert after["spec"]["schedulerName"] == ("default-scheduler" if syntax.marks.schedulers else "own")
    request.parse(after)


def test_every_syntax_has_rows_of_both_kinds() -> None:
    kinds = {(syntax.name, ours.startswith("refused: ")) for syntax, _, ours in rows()}
    assert kinds == {(name, refused) for name in SYNTAXES for refused in (False, True)}


def test_the_page_names_every_label() -> None:
    labels = re.findall(r"(?m)^\| `(gpushare\.io/understand-[a-z]+)` \|", PAGE.read_text())
    assert labels == [f"{contract.UNDERSTAND_PREFIX}{name}" for name in SYNTAXES]
