"""The commands and files that the documents name exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(REPOSITORY.glob("*.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
TARGET = re.compile(r"^([a-z-]+):.*## ", re.MULTILINE)
FILE = re.compile(
    r"(?<![\w/])((?:config|docs|lab|bench|tests|gpushare|webhook|deviceplugin|interposer|simgpu)/[\w./-]*\w)"
)


def commands(document: Path) -> list[str]:
    """Return the lines of the code blocks and the quoted commands."""
    text = document.read_text()
    lines = [line.strip() for language, block in BLOCK.findall(text) if language == "sh" for line in block.splitlines()]
    return lines + INLINE.findall(BLOCK.sub("", text))


def targets() -> set[str]:
    return set(TARGET.findall((REPOSITORY / "Makefile").read_text()))


def test_the_documents_exist() -> None:
    names = {path.name for path in DOCUMENTS}
    assert names >= {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"}
    assert "Apache License" in (REPOSITORY / "LICENSE").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_named_make_target_exists(document: Path) -> None:
    named = {match for line in commands(document) for match in re.findall(r"(?:^|&& |; )make ([a-z-]+)", line)}
    assert named <= targets()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_named_flag_of_install_sh_exists(document: Path) -> None:
    help_text = subprocess.run(
        ["./install.sh", "--help"], cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    named = {match for line in commands(document) for match in re.findall(r"install\.sh (--[a-z-]+)", line)}
    assert all(flag in help_text for flag in named)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_named_file_exists(document: Path) -> None:
    named = {match for line in commands(document) for match in FILE.findall(line)}
    assert sorted(name for name in named if not (REPOSITORY / name).exists()) == []


def test_the_readme_has_the_two_setup_commands() -> None:
    typed = commands(REPOSITORY / "README.md")
    assert any(line.startswith("./install.sh --local") for line in typed)
    assert any(line.startswith("make test ") or line == "make test" for line in typed)
    assert "make test" in (REPOSITORY / ".ci" / "run").read_text()


def test_make_help_explains_every_target() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    phony = set(re.findall(r"^\.PHONY: ([a-z-]+)$", makefile, re.MULTILINE))
    assert phony == targets()
    shown = subprocess.run(
        ["make", "help"], cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert all(f"  make {target} " in shown for target in targets())


def test_the_lock_has_packages_and_hashes_and_no_host() -> None:
    lock = (REPOSITORY / "requirements.lock").read_text()
    assert "--hash=sha256:" in lock
    for line in lock.splitlines()[1:]:
        assert re.fullmatch(r"[a-z0-9][a-z0-9._-]*==[^ ]+( ; .+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?", line), line
