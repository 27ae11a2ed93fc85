"""Troubleshooting quotes the sentences that the programs print."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from lab import access, lab_errors
from tests.docs import pages, printed

LINES = (pages.ROOT / "docs" / "troubleshooting.md").read_text().splitlines()
HEADERS = {"it says", "GPUs that are", "the node", "you see"}  # tables whose first cells quote output


def sentences() -> Iterator[str]:
    header = ""
    for line in LINES:
        cells = line.strip("|").split(" | ") if line.startswith("|") else []
        if not cells:
            header = ""
        elif not header:
            header = cells[0].strip()
        if line.startswith("> ") and not re.match(r"> [A-Z]\w+: ", line):
            yield line.removeprefix("> ").strip("`")
        elif header in HEADERS:
            yield from re.findall(r"`([^`]+)`", cells[0])


SENTENCES = sorted({sentence for sentence in sentences() if " " in sentence})


def test_the_page_has_sentences_to_check() -> None:
    assert len(SENTENCES) > 60
    assert "the node's kernel has no NVIDIA driver loaded: load it, or unlabel the node" in SENTENCES


@pytest.mark.parametrize("sentence", SENTENCES)
def test_every_quoted_sentence_is_printed_by_a_program(sentence: str) -> None:
    assert printed.prints(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "no GPU fits …; the nearest: …",
        "is above one GPU: write 0 to 1 in steps of 0.01",
        "nearest: …; no GPU fits …",
        "the arbiter can not be reached at …",
    ],
)
def test_a_sentence_that_no_program_prints_is_detected(sentence: str) -> None:
    assert not printed.prints(sentence)


@pytest.mark.apiserver
def test_kubernetes_prints_the_error_for_an_unquoted_number(api_server: access.Access) -> None:
    block = next(block for block in pages.blocks() if block.page == "docs/first-pod.md" and "name: first" in block.text)
    text = block.text.replace('"0.5"', "0.5")
    sentence = next(line.partition(": ")[2].strip("`") for line in LINES if line.startswith("> Kubernetes: `cannot un"))
    with pytest.raises(lab_errors.LabError, match=re.escape(sentence)):
        api_server.kubectl("apply", "--dry-run=server", "--filename=-", input=text)
