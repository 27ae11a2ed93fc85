"""Lines of a narrow terminal break between words, and inside a long word at a mark if it has one."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kubectl_gpushare.output import terminal
from kubectl_gpushare.output.terminal import Terminal

LETTERS = st.text("ab/.-, ", max_size=80).map(lambda text: " ".join(text.split()))


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("default/ten-quarters-of-a-gpu", ["default/ten-", "quarters-of-a-", "gpu"]),
        ("gpushare.io/request.trainer is 1", ["gpushare.io/", "request.trainer", "is 1"]),
        ("it waits for default/one-quarter now", ["it waits for", "default/one-", "quarter now"]),
        ("kubectl gpushare top", ["kubectl gpushare", "top"]),
        ("a" * 20, ["a" * 16, "a" * 4]),
        ("", [""]),
    ],
)
def test_long_words_break_at_their_marks(text: str, lines: list[str]) -> None:
    assert terminal.wrapped(text, Terminal(columns=16)) == lines


@given(LETTERS, st.integers(1, 30))
@example("a/b", 1)
def test_wrapping_loses_nothing_and_breaks_only_long_words(text: str, width: int) -> None:
    lines = terminal.broken(text, width)
    assert max(map(len, lines)) <= width
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(lines) or not text
    for word in text.split():
        if len(word) <= width:
            assert any(word in line for line in lines)
