"""Programs of Debian packages that are only unpacked, because installing them would start a daemon.

They are cached by package version, and shared by all checkouts.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from lab import build, components, lab_errors, prerequisites

# By program: the Debian package that contains it.
PACKAGES: Final = {"prometheus": "prometheus", "promtool": "prometheus"}
# By program: its package in contrib or non-free, and its path there. The machine's own programs are not used.
OTHERS: Final = {"nvidia-smi": ("nvidia-smi", "usr/lib/nvidia/current"), "nvtop": ("nvtop", "usr/bin")}


def program(name: str) -> Path:
    """Return the path of a program: the machine's own, or else one that is unpacked into the cache.

    Raises:
        LabError: the machine does not have it, and it cannot be downloaded.
    """
    there = shutil.which(name, path=prerequisites.SEARCH_PATH)
    return Path(there) if there is not None else _directory(PACKAGES[name]) / "usr" / "bin" / name


def other(name: str) -> tuple[Path, str]:
    """Return the path of a program from contrib or non-free, and its upstream version.

    Raises:
        LabError: it cannot be downloaded.
    """
    package, where = OTHERS[name]
    configuration = components.configuration()
    files = _directory(package, configuration)
    return files / where / name, files.name.removeprefix(f"{package}-").partition("-")[0]


def _directory(package: str, configuration: Path | None = None) -> Path:
    if shutil.which("apt-get") is None:
        raise lab_errors.LabError(
            f"this machine has no apt-get; install the Debian package {package} or its equivalent"
        )
    version = _version(package, configuration)
    if not version:  # the package lists were never read
        _update(configuration)
        version = _version(package, configuration)
    target = build.cache_directory() / f"{package}-{version}"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _unpack(package, target, configuration)
    return target


def _options(configuration: Path | None) -> list[str]:
    """Return apt's options; without a configuration of ours it keeps a cache, because some images turn its own off."""
    if configuration is not None:
        return [f"--config-file={configuration}"]
    return ["-o", f"Dir::Cache::pkgcache={build.cache_directory() / 'apt-packages.bin'}"]


def _update(configuration: Path | None) -> None:
    if configuration is None:
        prerequisites.update()
    else:
        components.update(configuration)


def _version(package: str, configuration: Path | None) -> str:
    command = ["apt-cache", *_options(configuration), "show", "--no-all-versions", package]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return next((line.split()[1] for line in said.splitlines() if line.startswith("Version:")), "")


def _unpack(package: str, target: Path, configuration: Path | None) -> None:
    scratch = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        if not _downloaded(package, scratch, configuration):
            # The usual reason is a package list that is older than the mirror.
            _update(configuration)
            if not _downloaded(package, scratch, configuration):
                raise lab_errors.LabError(f"apt-get could not download {package}; see its messages above")
        (archive,) = scratch.glob("*.deb")
        subprocess.run(["dpkg-deb", "--extract", str(archive), str(scratch / "files")], check=True)
        (scratch / "files").rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _downloaded(package: str, directory: Path, configuration: Path | None) -> bool:
    # Run as the current user: apt's own user could not write into our directory.
    user = ["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []
    command = ["apt-get", "-qq", *_options(configuration), *user, "download", package]
    return subprocess.run(command, cwd=directory, stdout=2, check=False).returncode == 0
