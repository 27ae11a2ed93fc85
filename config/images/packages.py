"""Fetches exactly the Debian packages of packages.lock, by hash; if the mirrors no longer have one, takes the
newest.
"""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from config.images import apt, contents
from config.images.tree import Node, Tree
from lab import build, lab_errors

LOCK = Path(__file__).parent / "packages.lock"
HEADER = "# Made by `make images-lock`: the Debian packages of the images, with architecture, version and SHA-256.\n"
# apt's messages if its lists lack a version or package, or if the mirror has removed the file.
GONE = ("was not found", "Unable to locate package", "404")


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class Package:
    """A locked package."""

    name: str
    architecture: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.name} {self.architecture} {self.version} sha256:{self.sha256}"


def locked(architecture: str, lock: Path = LOCK) -> list[Package]:
    """Return the locked packages of an architecture.

    Raises:
        LabError: a line is invalid, or a package is missing.
    """
    packages = {}
    for number, line in enumerate(lock.read_text().splitlines(), 1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        if len(words) != 4 or not words[3].startswith("sha256:"):
            raise lab_errors.LabError(
                f"{lock}:{number} is not a package of the lock; regenerate it with: make images-lock"
            )
        if words[1] == architecture:
            packages[words[0]] = Package(words[0], words[1], words[2], words[3].removeprefix("sha256:"))
    missing = sorted(set(contents.PACKAGES) - set(packages))
    if missing:
        names = ", ".join(missing)
        raise lab_errors.LabError(f"{lock} lacks {names} for {architecture}; regenerate it with: make images-lock")
    return [packages[name] for name in sorted(contents.PACKAGES)]


def fetch(wanted: Sequence[Package]) -> dict[Package, Path]:
    """Return the packages' archives. A version that the mirrors dropped is replaced by the newest one, with a message.

    Raises:
        LabError: apt could not get one.
    """
    packages = list(wanted)
    if missing := [package for package in packages if not _kept(package).exists()]:
        apt.Apt().update()
        _download(missing)
        for gone in [package for package in missing if not _kept(package).exists()]:
            (newer,) = newest([gone.name], gone.architecture)
            print(
                f"images: the mirrors no longer have {gone.name} {gone.version} ({gone.architecture}); "
                f"taking {newer.version}. To pin it: make images-lock",
                file=sys.stderr,
            )
            _download([newer])
            if not _kept(newer).exists():
                raise lab_errors.LabError(f"apt could not get {newer.name} {newer.version} ({newer.architecture})")
            packages[packages.index(gone)] = newer
    return {package: _kept(package) for package in sorted(packages)}


def newest(names: Iterable[str], architecture: str) -> list[Package]:
    """Return the newest version of each package. The lists must be up to date.

    Raises:
        LabError: a package has none.
    """
    wanted = sorted(names)
    shown = (
        apt.Apt().run("apt-cache", "show", "--no-all-versions", *(f"{name}:{architecture}" for name in wanted)).stdout
    )
    known = {fields["Package"]: fields for fields in map(_fields, shown.split("\n\n")) if "SHA256" in fields}
    if lacking := [name for name in wanted if name not in known]:
        raise lab_errors.LabError(
            f"this machine's package sources have no {', '.join(lacking)} of Debian {apt.RELEASE} for {architecture}; "
            f"name a sources file of it in {apt.SOURCES}"
        )
    return [Package(name, architecture, known[name]["Version"], known[name]["SHA256"]) for name in wanted]


def lock(architectures: Iterable[str]) -> str:
    """Return the text of a new lock file."""
    apt.Apt().update()
    packages = [package for architecture in architectures for package in newest(contents.PACKAGES, architecture)]
    return HEADER + "".join(f"{package}\n" for package in sorted(packages))


def unpack(archives: Mapping[Package, Path], tree: Tree) -> None:
    """Unpack packages into a tree, with the metadata by which scanners recognise them."""
    kept, left_out = contents.pattern(contents.PACKAGE_FILES_KEPT), contents.pattern(contents.PACKAGE_FILES_LEFT_OUT)
    for package, path in archives.items():
        files = subprocess.run(["dpkg-deb", "--fsys-tarfile", path], check=True, stdout=subprocess.PIPE).stdout
        tree.add_tar(files, lambda inside: bool(kept.match(inside)) or not left_out.match(inside))
        control = subprocess.run(["dpkg-deb", "--field", path], check=True, stdout=subprocess.PIPE).stdout
        tree.put(f"var/lib/dpkg/status.d/{package.name}", Node(content=control))


def _download(packages: Sequence[Package]) -> None:
    """Download packages into the cache, except those that the mirrors do not have.

    Raises:
        LabError: apt failed for another reason.
    """
    wanted = {package.sha256: package for package in packages}
    with tempfile.TemporaryDirectory(prefix="gpushare-packages-") as scratch:
        names = [f"{package.name}:{package.architecture}={package.version}" for package in packages]
        # A single missing version makes apt refuse the whole request.
        if apt.Apt().run("apt-get", "-q", "download", *names, directory=Path(scratch)).returncode:
            for name in names:
                result = apt.Apt().run("apt-get", "-q", "download", name, directory=Path(scratch))
                if result.returncode and not any(reason in result.stderr for reason in GONE):
                    raise lab_errors.LabError(f"apt could not download {name}: {result.stderr.strip()}")
        for path in Path(scratch).glob("*.deb"):
            content = path.read_bytes()
            if package := wanted.get(hashlib.sha256(content).hexdigest()):
                target = _kept(package)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.with_suffix(".new").write_bytes(content)
                target.with_suffix(".new").rename(target)


def _kept(package: Package) -> Path:
    return build.cache_directory() / "images" / "packages" / package.sha256[:16] / f"{package.name}.deb"


def _fields(paragraph: str) -> dict[str, str]:
    pairs = (line.partition(": ") for line in paragraph.splitlines() if not line.startswith(" "))
    return {key: value for key, _, value in pairs}
