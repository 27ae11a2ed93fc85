"""Makes what krew installs: an archive of the plugin with all it imports, and the manifest that names it by its hash.

A folder of modules, not one zip file: Python keeps what it has compiled of a folder, and so starts in half the time.
Compiled code (numpy, libyaml) stays out, so that one archive serves every machine. The verbs that plan need numpy in
the python3 that runs them, and say so; without libyaml, YAML is read more slowly.

Run: `make krew BASE=https://… HOMEPAGE=https://…`, with the address that the archive will have.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib.metadata
import io
import string
import tarfile
from collections.abc import Iterator
from pathlib import Path

import gpushare

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("gpushare", "kubectl_gpushare")
LIBRARIES = ("click", "PyYAML", "tabulate")
LEFT_OUT = ("gpushare/cluster", "gpushare/daemon")  # for webhook and agent: they import what is not in the archive
PROGRAMS = {
    "kubectl-gpushare": "main",
    "kubectl_complete-gpushare": "complete",
}  # functions of kubectl_gpushare.__main__
PROGRAM = """\
#!/usr/bin/env python3
import os
import sys

if sys.version_info < (3, 11):
    sys.exit("error: kubectl gpushare needs Python 3.11 or newer, and python3 is %d.%d" % sys.version_info[:2])
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "lib"))

from kubectl_gpushare.__main__ import {function}

sys.exit({function}())
"""


def contents() -> Iterator[tuple[str, bytes, int]]:
    """Path in the archive, content and permissions of every file."""
    yield "LICENSE", (ROOT / "LICENSE").read_bytes(), 0o644
    for name, function in PROGRAMS.items():
        yield name, PROGRAM.format(function=function).encode(), 0o755
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*"):
            inside = path.relative_to(ROOT).as_posix()
            if path.is_file() and "__pycache__" not in path.parts and not inside.startswith(LEFT_OUT):
                yield f"lib/{inside}", path.read_bytes(), 0o644
    for library in LIBRARIES:
        for file in importlib.metadata.files(library) or ():
            if file.suffix == ".py" and file.parts[0] == library.lower().removeprefix("py"):
                yield f"lib/{file.as_posix()}", file.read_binary(), 0o644
            elif "LICENSE" in file.name.upper():
                yield f"licenses/{library}", file.read_binary(), 0o644


def archive() -> bytes:
    """The same bytes for the same files, whenever and wherever it is made."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content, permissions in sorted(contents()):
            member = tarfile.TarInfo(f"gpushare/{name}")
            member.size, member.mode = len(content), permissions
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), mtime=0)


def manifest(content: bytes, *, base: str, homepage: str) -> str:
    """The manifest of an archive that will be at `base`."""
    template = string.Template((Path(__file__).parent / "gpushare.yaml.template").read_text())
    return template.substitute(
        version=gpushare.__version__,
        homepage=homepage,
        base=base.rstrip("/"),
        archive=archive_name(),
        sha256=hashlib.sha256(content).hexdigest(),
    )


def archive_name() -> str:
    """The name of the release's archive."""
    return f"kubectl-gpushare-v{gpushare.__version__}.tar.gz"


def main() -> None:
    """Write both into a folder."""
    parser = argparse.ArgumentParser(description="Make the archive and the manifest for krew.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--base", required=True, help="where the archive will be, without its name")
    parser.add_argument("--homepage", required=True)
    options = parser.parse_args()
    content = archive()
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / archive_name()).write_bytes(content)
    (options.folder / "gpushare.yaml").write_text(manifest(content, base=options.base, homepage=options.homepage))


if __name__ == "__main__":
    main()
