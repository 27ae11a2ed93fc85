"""Phrases that the project has replaced by plain words do not return."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
READ = ("*.py", "*.c", "*.h", "*.sh", "*.md", "*.yaml")
HISTORY = frozenset({"CHANGELOG.md", "tests/contract/test_plain_words.py"})
INSTEAD = {
    r"(?<=[a-z`}] )anew\b": "again; for an object: recreated",
    r"\bmakes? no sense\b": "is invalid",
    r"\b(?:has|have) not (?:the|a) [a-z]+\b": "lacks, or does not have",
    r"\bis not known(?! to\b| yet\b)\b": "is unknown",
    r"(?<![Tt]here )\b(?:is|was) no (?:list|object|mapping|number|file|directory|text|YAML|pod)\b": "is not a …",
    r"\bsomebody who is not known\b": "an unknown user, or component",
}


def test_no_text_uses_a_banned_phrase() -> None:
    listed = subprocess.run(["git", "ls-files", *READ], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    again = [
        f"{name}:{len(text[: match.start()].splitlines()) or 1}: {match[0]}: write: {instead}"
        for name in listed.split()
        if name not in HISTORY and (ROOT / name).is_file()  # a file that was just removed is still listed
        for text in [(ROOT / name).read_text()]
        for phrase, instead in INSTEAD.items()
        for match in re.finditer(phrase, text)
    ]
    assert not again, "\n".join(again)
