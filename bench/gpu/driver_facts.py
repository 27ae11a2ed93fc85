"""Finds out whether this machine's CUDA driver returns the functions that the library intercepts.

The library recognises a function by its address: cuGetProcAddress must return the function that the driver exports
under that name. Another function would escape the limits, so the library refuses it.

`python3 -m bench.gpu.driver_facts` asks for every intercepted name at every version and flag, in a second or two. It
also lists the driver's exports that are in no table of the library. It needs no package, no header and no GPU.
"""

from __future__ import annotations

import ctypes
import fnmatch
import re
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

TABLES = Path(__file__).resolve().parents[2] / "interposer" / "driver"
# Functions that allocate, free, run or change something, or report sizes, have one of these words in their names.
TELLING = re.compile(
    r"Alloc|Create|Retain|Capture|Total|Launch|Free|Info|Map|Pool|Import|Export|Open|Bind|Load|Instantiate|Upload|Clone|Limit"
    r"|Update|NodeSetParams"
)
# Versions in which a function changed its form; the driver's own version is asked for too.
VERSIONS = (2000, 3020, 4000, 6050, 7000, 8000, 9020, 10000, 10010, 10020, 11000, 11020, 11030, 11040, 11060, 11070)
VERSIONS_12_ON = (12000, 12020, 12030, 12040, 12050, 12060, 12080, 12090, 13000, 13010, 13020, 13030, 13040, 13050)
FLAGS = (0, 1, 2)
_FORM = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")
_DYNAMIC_SYMBOLS, _LOCAL, _UNDEFINED = 11, 0, 0  # of ELF: SHT_DYNSYM, STB_LOCAL, SHN_UNDEF


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """The functions that a driver exports and returns, compared with the library's tables."""

    driver_version: int
    hooked: int
    not_exported: tuple[str, ...]
    intercepted_answers: int
    not_intercepted: Mapping[str, tuple[tuple[int, int], ...]]  # by name, the versions and flags of such answers
    unlisted: tuple[str, ...]

    def sentences(self) -> Iterator[str]:
        """Yield the facts, one a line."""
        major, minor = self.driver_version // 1000, self.driver_version % 1000 // 10
        yield f"driver of CUDA {major}.{minor}: {self.hooked} functions are intercepted"
        yield f"of those the driver does not export: {', '.join(self.not_exported) or 'none'}"
        yield f"answers of cuGetProcAddress that are intercepted functions: {self.intercepted_answers}"
        for name, asked in self.not_intercepted.items():
            version, flags = asked[0]
            yield f"NOT INTERCEPTED: {name}, {len(asked)} answers, the first for version {version}, flags {flags}"
        if not self.not_intercepted:
            yield "NOT INTERCEPTED: none"
        yield f"exported, and in no table of the library: {', '.join(self.unlisted) or 'none'}"


def base(name: str) -> str:
    """Return the name without suffixes such as _v2, as cuGetProcAddress expects it."""
    return _FORM.sub("", name)


def hooked(kinds: str = "HOOK|REFUSE|LAUNCH") -> set[str]:
    """Return the CUDA functions in rows of these kinds in hooks.def."""
    rows = re.findall(rf"^(?:{kinds})\((?:(\w+), )?(\w+),", (TABLES / "hooks.def").read_text(), re.MULTILINE)
    return {name for library, name in rows if library != "NVML"}


def unhooked() -> dict[str, str]:
    """Return the patterns in unhooked.txt, each with the reason.

    Raises:
        ValueError: a pattern is there twice, or has no reason.
    """
    why, reasons = "", dict[str, str]()
    for line in (TABLES / "unhooked.txt").read_text().splitlines():
        if line.startswith("["):
            why = line.strip("[]")
        elif not line.startswith("#"):
            for pattern in line.split():
                if pattern in reasons or not why:
                    raise ValueError(f"{pattern} in unhooked.txt: {'is listed twice' if why else 'has no [reason]'}")
                reasons[pattern] = why
    return reasons


def excused(name: str, patterns: set[str], intercepted: set[str]) -> set[str]:
    """Return the patterns by which a function may go without a hook."""
    if name in intercepted or base(name) in patterns:
        return {base(name)} & patterns
    if TELLING.search(name):
        return set()
    return {pattern for pattern in patterns if pattern.endswith("*") and fnmatch.fnmatchcase(base(name), pattern)}


def exported_names(library: Path) -> Iterator[str]:
    """Yield the names that a 64-bit ELF library defines for others."""
    binary = library.read_bytes()
    if not struct.unpack_from("<H", binary, 60)[0]:
        raise OSError(f"{library} has no section headers")
    (sections,) = struct.unpack_from("<Q", binary, 40)
    size, count = struct.unpack_from("<HH", binary, 58)
    headers = [struct.unpack_from("<IIQQQQII", binary, sections + i * size) for i in range(count)]
    for _, kind, _, _, start, length, strings, _ in headers:
        for at in range(start, start + length, 24) if kind == _DYNAMIC_SYMBOLS else ():
            name, info, _, section = struct.unpack_from("<IBBH", binary, at)
            if section != _UNDEFINED and info >> 4 != _LOCAL:
                begin = headers[strings][4] + name
                yield binary[begin : binary.index(b"\0", begin)].decode()


def _address(driver: ctypes.CDLL, name: str) -> int | None:
    function = getattr(driver, name, None)
    return ctypes.cast(function, ctypes.c_void_p).value if function else None


def _loaded_file(address: int) -> Path:
    """Return the file that is mapped at this address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(bound, 16) for bound in line.split()[0].split("-"))
        if begin <= address < end:
            return Path(line.split(maxsplit=5)[5])
    raise OSError(f"no file is mapped at {address:#x}")


def _answers(driver: ctypes.CDLL, names: set[str], versions: list[int]) -> Iterator[tuple[str, int, int, int]]:
    """Yield name, version, flags and address for every question that the driver answers with a function."""
    ask = driver.cuGetProcAddress_v2
    ask.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p)
    for name in sorted(names):
        for version in versions:
            for flags in FLAGS:
                found, status = ctypes.c_void_p(), ctypes.c_int()
                if ask(name.encode(), ctypes.byref(found), version, flags, ctypes.byref(status)) == 0 and found.value:
                    yield name, version, flags, found.value


def facts(libcuda: str) -> DriverFacts:
    """Return what the driver of this path or soname exports and hands out. The library must not be preloaded.

    Raises:
        OSError: there is no such driver, or it is older than CUDA 12.
    """
    driver = ctypes.CDLL(libcuda)
    if not hasattr(driver, "cuGetProcAddress_v2"):
        raise OSError(f"{libcuda} has no cuGetProcAddress_v2: it is older than CUDA 12, or no driver")
    version = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    intercepted, needed, patterns = hooked(), hooked("NEED"), set(unhooked())
    addresses = {name: address for name in intercepted if (address := _address(driver, name)) is not None}
    answers, others = 0, dict[str, list[tuple[int, int]]]()
    known = set(addresses.values())
    versions = sorted({*VERSIONS, *VERSIONS_12_ON, version.value} - {0})
    for name, asked, flags, address in _answers(driver, {base(name) for name in intercepted}, versions):
        if address in known:
            answers += 1
        else:
            others.setdefault(name, []).append((asked, flags))
    exports = set(exported_names(_loaded_file(_address(driver, "cuGetProcAddress_v2") or 0)))
    return DriverFacts(
        driver_version=version.value,
        hooked=len(intercepted),
        not_exported=tuple(sorted(intercepted - set(addresses))),
        intercepted_answers=answers,
        not_intercepted={name: tuple(asked) for name, asked in others.items()},
        unlisted=tuple(
            sorted(
                name
                for name in exports - intercepted - needed
                if name.startswith("cu") and not excused(name, patterns, intercepted)
            )
        ),
    )


def main() -> int:
    """Print the facts; 1: the driver hands out functions that are not intercepted; 2: there is no such driver."""
    try:
        found = facts(sys.argv[1] if len(sys.argv) > 1 else "libcuda.so.1")
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(*found.sentences(), sep="\n")
    return bool(found.not_intercepted)


if __name__ == "__main__":
    sys.exit(main())
