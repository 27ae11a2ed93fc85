"""`make check` compiles the C parts with other distributions' hardening and with clang; any warning fails it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.interposer.container import ROOT

UNCHECKED = '#include <stdio.h>\nint number(FILE *f);\nint number(FILE *f) { int n = 0; (void)fscanf(f, "%d", &n); return n; }\n'
UNUSED = "static inline int unused(void) { return 1; }\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compiler", "planted", "warning"),
    [("hardened", UNCHECKED, "unused-result"), ("clang", UNUSED, "unused-function")],
)
def test_a_warning_of_any_compiler_fails_the_check(tmp_path: Path, compiler: str, planted: str, warning: str) -> None:
    source = tmp_path / "planted.c"
    source.write_text(planted)
    command = ["make", "--silent", "-C", ROOT / "tests" / "compilers", compiler, f"SOURCES={source}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode != 0
    assert warning in result.stderr
    source.write_text("int fine;\n")
    subprocess.run(command, check=True, timeout=120)
