"""Tests the library's file. It is loaded into every process of a container, so it must have no side effects."""

from __future__ import annotations

import re
import subprocess

from tests.interposer.container import LIBRARY, ROOT

SOURCES = ROOT / "interposer"
NEWEST_GLIBC = (2, 17)


def read(*command: str) -> str:
    return subprocess.run([*command, LIBRARY], check=True, capture_output=True, text=True).stdout


def rows(kinds: str) -> set[str]:
    table = (SOURCES / "driver" / "hooks.def").read_text()
    return {match[2] for match in re.finditer(rf"^({kinds})\((?:\w+, )?(\w+),", table, re.MULTILINE)}


def test_library_needs_only_libc() -> None:
    assert re.findall(r"NEEDED.*\[(.*)\]", read("readelf", "-dW")) == ["libc.so.6"]


def test_library_has_no_constructors() -> None:
    assert not re.search(r"INIT|FINI", read("readelf", "-dW"))
    assert not re.search(r"\.(init|fini|ctors|dtors)", read("readelf", "-SW"))


def test_library_exports_only_the_functions_that_it_replaces() -> None:
    exported = set(re.findall(r" [A-Zb-z] (?!GLIBC)(\w+)", read("nm", "-D", "--defined-only")))
    assert exported == rows("HOOK|REFUSE|LAUNCH") | {"dlsym", "dlopen"}
    assert len(exported) > 50


def test_only_replacements_of_libc_have_symbol_versions() -> None:
    versioned = set(re.findall(r"(\w+@+[\w.]+)", read("nm", "-D", "--defined-only")))
    assert {symbol for symbol in versioned if not symbol.startswith("GLIBC")} == {
        f"{name}{version}" for name in ("dlsym", "dlopen") for version in ("@@GLIBC_2.34", "@GLIBC_2.2.5")
    }


def test_library_runs_on_old_glibc() -> None:
    needed = {
        tuple(map(int, text.split("."))) for text in re.findall(r"GLIBC_([\d.]+)", read("nm", "-D", "--undefined-only"))
    }
    assert needed
    assert max(needed) <= NEWEST_GLIBC, max(needed)


def test_library_uses_nothing_outside_libc_of_old_glibc() -> None:
    # With glibc before 2.34 these are in libpthread, libdl and librt, which a shell does not load.
    elsewhere = re.compile(
        r" (pthread_(?!mutex_(un)?lock|setcancelstate)|sem_|dl(?!_iterate_phdr)|shm_|timer_|mq_|aio_)"
    )
    assert elsewhere.findall(read("nm", "-D", "--undefined-only")) == []


def test_tables_are_read_only_after_loading() -> None:
    assert "GNU_RELRO" in read("readelf", "-lW")
    dynamic = read("readelf", "-dW")
    assert "BIND_NOW" in dynamic
    assert "TEXTREL" not in dynamic
    flags = re.findall(r"LOAD .* ([RWE ]{3}) 0x", read("readelf", "-lW"))
    assert flags
    assert not [flag for flag in flags if "W" in flag and "E" in flag]


def test_stack_is_not_executable() -> None:
    (stack,) = re.findall(r"GNU_STACK.* (R\w+) ", read("readelf", "-lW"))
    assert stack == "RW"


def test_only_driver_c_looks_up_real_functions() -> None:
    users = {path.name for path in SOURCES.rglob("*.c") if re.search(r"\bdlv?sym\s*\(|dlfcn", path.read_text())}
    assert users == {"driver.c"}


def test_library_does_not_read_the_environment() -> None:
    assert "getenv" not in read("nm", "-D")


def test_readme_lists_every_hook() -> None:
    readme = (SOURCES / "README.md").read_text()
    missing = {name for name in rows("HOOK|REFUSE|LAUNCH") if f"`{name}`" not in readme}
    assert missing == set()
