"""Pages read like text by Kubernetes engineers, and no change makes a page read worse."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import code_prose, pages, prose


@pytest.mark.parametrize("page", prose.PAGES, ids=pages.name)
def test_a_page_reads_no_worse_than_its_ceiling(page: Path) -> None:
    allowed = prose.ceilings().get(pages.name(page), {})
    assert prose.problems(prose.measure(page.read_text()), allowed) == []


@pytest.mark.slow
@pytest.mark.parametrize(("package", "printed"), code_prose.CASES)
def test_code_reads_no_worse_than_its_ceiling(package: str, printed: bool) -> None:
    name = code_prose.name(package, printed=printed)
    measured, allowed = code_prose.measure(package, printed=printed), prose.ceilings().get(name, {})
    needed = code_prose.ceiling(package, measured)
    worst = "; ".join(measured.sentences[:20])
    assert {kind: most for kind, most in needed.items() if most > allowed.get(kind, 0)} == {}, f"{name}: {worst}"
    above = {kind: most for kind, most in allowed.items() if most > needed.get(kind, 0) + 0.3}
    assert above == {}, f"{name} is better than its ceiling: run python -m tests.docs.code_prose"


def test_docstrings_comments_and_strings_of_code_are_measured() -> None:
    source = '"""Nobody."""\n# One\n# two\nx = f"{y} is what the pod was told"  # three\ndef f():\n    """Four."""\n'
    assert list(code_prose.python_docstrings(source)) == ["Nobody.", "Four."]
    assert list(filter(None, code_prose.python_comments(source))) == ["One two", "three"]
    assert list(code_prose.strings(source)) == ["X is what the pod was told"]
    c = '/* one\n * two */ char *s = "/* no */";\n// three\n// four\n'
    assert list(code_prose.c_comments(c)) == ["one two", "three four"]


def test_every_ceiling_belongs_to_a_page_or_a_package() -> None:
    packages = {code_prose.name(package, printed=printed) for package, printed in code_prose.CASES}
    assert set(prose.ceilings()) <= {*map(pages.name, prose.PAGES), *packages}


@pytest.mark.parametrize(
    "sentence",
    [
        "What is refused is logged.",
        "Whoever writes it first wins.",
        "- **Whose** gate is shut waits.",
        "| a cell | Nobody reads it |",
        "The pod is\ntold why.",
        "Each has a page of its own.",
        "It is given to who asked.",
        "Two kinds: who asks, and the rest.",
    ],
)
def test_a_construction_is_counted(sentence: str) -> None:
    assert len(prose.measure(f"# Title\n\n{sentence}\n").sentences) >= 1


@pytest.mark.parametrize(
    "text",
    [
        "What does it cost?",
        "# What it costs",
        "```sh\nkubectl get nobody\n```",
        "<!-- nobody sees it -->",
        "The message is `nobody is told`.",
        "The agent reports what it found.",
        "Pods that wait keep their place in the queue.",
    ],
)
def test_plain_text_code_and_headings_are_not_counted(text: str) -> None:
    assert prose.measure(f"{text}\n").sentences == ()


def test_a_long_line_is_found_by_its_number() -> None:
    long = "word " * 21
    link = f"[the figures]({'x' * 100}.md)"
    text = f"# {long}\n\n{long}\n| {long} |\n> {long}\n{link}\n```sh\n{long}\n```\n\n- {long}\n"
    assert prose.measure(text).long_lines == (3, 11)


@pytest.mark.parametrize(
    ("words", "constructions", "accepted"), [(100, 1, True), (900, 2, False), (3000, 3, True), (3000, 4, False)]
)
def test_the_aim_is_a_single_construction_or_one_in_a_thousand_words(
    words: int, constructions: int, accepted: bool
) -> None:
    text = f"{'Nobody knows. ' * constructions}{'word ' * (words - 2 * constructions)}".replace(" word", "\nword")
    measured = prose.measure(text)
    assert (measured.words, len(measured.sentences)) == (words, constructions)
    assert bool(prose.problems(measured, {})) is not accepted


@pytest.mark.parametrize("page", prose.PAGES, ids=pages.name)
def test_a_page_that_gets_worse_is_noticed(page: Path) -> None:
    text = page.read_text()
    allowed = prose.ceiling(prose.measure(text))
    worse = prose.measure(f"{text}\n{'Nobody is told of it. ' * 10}\n")
    assert len(prose.problems(worse, allowed)) == 2


def test_a_ceiling_above_what_a_page_needs_is_lowered() -> None:
    measured = prose.measure("Nobody knows. Nobody cares.\n")
    assert prose.problems(measured, {"constructions": 2}) == []
    assert "better than its ceiling" in prose.problems(measured, {"constructions": 3})[0]
    assert "better than its ceiling" in prose.problems(prose.measure("All is well.\n"), {"long_lines": 1})[0]
