"""Finds or installs the distribution's programs that the lab's nodes and some tests need.

They are looked up by program, not by package, so programs installed by other means are used too. Packages whose
installation would start a daemon are in `unpacked`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from lab import lab_errors

# By program: the Debian package that contains it.
PACKAGES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "busybox": "busybox-static",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
    "tmux": "tmux",
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu",
    "qemu-aarch64-static": "qemu-user-static",
    "skopeo": "skopeo",
    "clang": "clang",
}
# The same for programs that no node needs: `ensure_programs` installs them for the tests and tools that do.
ON_DEMAND = {"chromium": "chromium"}
# By file that is not a program: the Debian package that contains it.
FILES = {
    Path("/usr/share/bash-completion/bash_completion"): "bash-completion",
    Path("/usr/aarch64-linux-gnu/lib/libc.so.6"): "libc6-dev-arm64-cross",
}
# By program: the files that it also needs, and their packages.
BESIDES = {"aarch64-linux-gnu-gcc": "libc6-dev-arm64-cross"}
CNI_PACKAGE = "containernetworking-plugins"
CNI_DIRECTORIES = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CNI_PLUGINS = ("bridge", "host-local", "loopback")
# Debian installs some of these outside an ordinary user's PATH.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"])


def program(name: str) -> str:
    """Return the path of a program that the lab needs.

    Raises:
        LabError: it is not installed.
    """
    path = shutil.which(name, path=SEARCH_PATH)
    if path is None:
        raise lab_errors.LabError(f"`{name}` is missing; install it by: apt-get install {_package(name)}")
    return path


def cni_directory() -> Path:
    """Return the directory of the CNI plugins.

    Raises:
        LabError: no directory has them all.
    """
    for directory in CNI_DIRECTORIES:
        if all((directory / plugin).exists() for plugin in CNI_PLUGINS):
            return directory
    raise lab_errors.LabError(f"the CNI plugins are missing; install them by: apt-get install {CNI_PACKAGE}")


def missing_packages() -> list[str]:
    """Return the packages to install, sorted; empty if nothing is missing."""
    missing = {package for name, package in PACKAGES.items() if shutil.which(name, path=SEARCH_PATH) is None}
    missing |= {package for file, package in FILES.items() if not file.exists()}
    try:
        cni_directory()
    except lab_errors.LabError:
        missing.add(CNI_PACKAGE)
    return sorted(missing)


def ensure() -> None:
    """Install what the node needs and the machine lacks.

    Raises:
        LabError: the caller is not root, there is no apt-get, or it failed.
    """
    if os.geteuid() != 0:
        raise lab_errors.LabError("a node needs root (mounts, cgroups, a bridge); as another user only `api` works")
    _ensure(missing_packages())


def ensure_programs(*names: str) -> None:
    """Install the missing ones of these programs, as root; otherwise raise an error that says how.

    Raises:
        LabError: a program is missing and cannot be installed.
    """
    if os.geteuid() == 0:
        lacking = [name for name in names if shutil.which(name, path=SEARCH_PATH) is None]
        packages = {*map(_package, lacking), *(BESIDES[name] for name in lacking if name in BESIDES)}
        _ensure(sorted(packages))
    for name in names:
        program(name)


def _ensure(missing: list[str]) -> None:
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise lab_errors.LabError(
            f"this machine has no apt-get; install these Debian packages or their equivalents: {', '.join(missing)}"
        )
    print(f"lab: installing {', '.join(missing)}", file=sys.stderr, flush=True)
    if not _install(missing):
        # The usual reason is a package list that is older than the mirror.
        update()
        if not _install(missing):
            raise lab_errors.LabError(f"apt-get could not install {', '.join(missing)}; see its messages above")


def _package(name: str) -> str:
    return (PACKAGES | ON_DEMAND).get(name, name)


def ensure_packages(*packages: str) -> None:
    """Install these packages, which contain no program to look up.

    Raises:
        LabError: there is no apt-get, or it failed.
    """
    _ensure(list(packages))


def update() -> None:
    """Update the package lists."""
    _apt("update")


def _install(packages: list[str]) -> bool:
    return _apt("install", "--yes", "--no-install-recommends", *packages)


def _apt(*arguments: str) -> bool:
    command = ["apt-get", "-qq", *arguments]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    # Standard output is reserved for the shell commands of `python -m lab env`.
    return subprocess.run(command, env=environment, stdout=2, check=False).returncode == 0


if __name__ == "__main__":
    try:
        ensure_programs(*sys.argv[1:])
    except lab_errors.LabError as error:
        sys.exit(f"error: {error}")
