import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import printable

EVIL = "\x00\x07\t\x1b[2J\x7f\x85\x9b31m\u200f\u202a\u202e\u2028\u2029\u2066\u2069\ufeff\ud800\U000e0001"


def test_control_characters_are_replaced() -> None:
    assert printable.replaced(f"T4{EVIL}ü💥").startswith("T4��")
    assert printable.replaced(EVIL).translate({ord("�"): None}) == "[2J31m"
    assert printable.replaced("Größe … 💥 ─") == "Größe … 💥 ─"


@given(st.text(st.characters()))
def test_control_format_and_separator_characters_are_not_printable(text: str) -> None:
    shown = printable.replaced(text)
    assert len(shown) == len(text)
    assert not [char for char in shown if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}]


@pytest.mark.slow
@given(st.dictionaries(st.text(st.characters()), st.text(st.characters() | st.sampled_from(EVIL))))
def test_escaped_json_has_the_same_meaning(document: dict[str, str]) -> None:
    escaped = printable.escaped(json.dumps(document, indent=4, ensure_ascii=False))
    assert printable.is_document(escaped)
    assert json.loads(escaped) == document


def test_printable_json_is_unchanged() -> None:
    document = '{\n    "Größe": "💥 …"\n}'
    assert printable.escaped(document) == document
