"""Configures apt for Debian's components `contrib` and `non-free`, from the mirrors that this machine's apt uses.

apt works on separate state below the cache directory, and the machine's own stays as it is.
"""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path
from typing import Final

from lab import build, lab_errors, prerequisites

COMPONENTS: Final = ("contrib", "non-free")
_ASKED: Final = "$(REPO_URI) $(CODENAME) $(ORIGIN)"
_CONFIGURATION: Final = """\
Dir::State "{directory}/state";
Dir::State::lists "{directory}/lists";
Dir::State::status "/dev/null";
Dir::Cache "{directory}/cache";
Dir::Etc::sourcelist "{directory}/sources.list";
Dir::Etc::sourceparts "{directory}/empty";
Dir::Etc::preferencesparts "{directory}/empty";
APT::Sandbox::User "";
Acquire::Languages "none";
#clear Acquire::IndexTargets::deb::DEP-11;
#clear Acquire::IndexTargets::deb::Contents-deb;
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
"""


def configuration() -> Path:
    """Return a configuration file with which apt knows only the packages of these components.

    Raises:
        LabError: this machine's apt has no mirror of Debian, or the mirrors do not answer.
    """
    directory = build.cache_directory() / "components"
    for name in ("empty", "state", "lists/partial", "cache/archives/partial"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    file, known = directory / "apt.conf", directory / "sources.list"
    sources = "".join(f"deb {mirror} {' '.join(COMPONENTS)}\n" for mirror in _mirrors())
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not known.exists() or known.read_text() != sources:
            file.write_text(_CONFIGURATION.format(directory=directory))
            known.write_text(sources)
            update(file)
    return file


def update(file: Path) -> None:
    """Update the package lists. Raises LabError."""
    command = ["apt-get", "-qq", f"--config-file={file}", "update"]
    if subprocess.run(command, stdout=2, check=False).returncode != 0:
        file.with_name("sources.list").unlink(missing_ok=True)
        raise lab_errors.LabError("apt-get could not read the lists of contrib and non-free; see its messages above")


def _mirrors() -> list[str]:
    """Return the machine's mirrors of Debian, as `URI SUITE`."""
    mirrors = _known_mirrors()
    if not mirrors:  # apt knows a mirror's distribution only after it has read the mirror's list
        prerequisites.update()
        mirrors = _known_mirrors()
    if not mirrors:
        raise lab_errors.LabError(
            "this machine's apt has no mirror of Debian: contrib and non-free are looked up there"
        )
    return sorted(mirrors)


def _known_mirrors() -> set[str]:
    command = ["apt-get", "indextargets", "--format", _ASKED, "Created-By: Packages"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError as error:
        raise lab_errors.LabError(
            "this machine has no apt-get, which is needed for packages of contrib and non-free"
        ) from error
    rows = [line.split() for line in said.splitlines()]
    return {f"{uri} {codename}" for uri, codename, origin in rows if origin == "Debian"}
