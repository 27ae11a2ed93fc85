"""Runs apt with separate state: its lists are below the cache directory, and the machine's own lists stay as they are.

Sources, keys and proxies are the machine's; only packages of Debian 12 are used.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from config.images import contents
from lab import build, prerequisites

RELEASE = "bookworm"
SOURCES = "GPUSHARE_APT_SOURCES"

CONFIGURATION = """\
Dir::State "{directory}/state";
Dir::State::lists "{directory}/lists";
Dir::State::status "{directory}/status";
Dir::Cache "{directory}/cache";
Dir::Cache::pkgcache "pkgcache.bin";
Dir::Cache::srcpkgcache "srcpkgcache.bin";
Dir::Etc::preferences "{directory}/preferences";
Dir::Etc::preferencesparts "{directory}/empty";
{sources}
APT::Sandbox::User "";
#clear APT::Architectures;
APT::Architectures {{ {architectures} }};
Acquire::Languages "none";
#clear Acquire::IndexTargets::deb::DEP-11;
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
"""
PREFERENCES = f"""\
Package: *
Pin: release o=Debian,n={RELEASE}*
Pin-Priority: 990

Package: *
Pin: release o=*
Pin-Priority: -1
"""


class Apt:
    """apt with its configuration file and separate state."""

    def __init__(self) -> None:
        self._directory = build.cache_directory() / "images" / "apt"
        for name in ("empty", "state", "lists/partial", "cache/archives/partial"):
            (self._directory / name).mkdir(parents=True, exist_ok=True)
        (self._directory / "status").touch()
        sources = ""
        if chosen := os.environ.get(SOURCES):
            sources = (
                f'Dir::Etc::sourcelist "{Path(chosen).resolve()}"; Dir::Etc::sourceparts "{self._directory}/empty";'
            )
        text = CONFIGURATION.format(
            directory=self._directory,
            sources=sources,
            architectures=" ".join(f'"{name}";' for name in contents.MACHINES),
        )
        with self.held():
            for name, content in (("preferences", PREFERENCES), ("apt.conf", text)):
                (self._directory / f"{name}.new").write_text(content)
                (self._directory / f"{name}.new").rename(self._directory / name)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock this state against other processes. Do not call `run` inside: it takes the same lock."""
        with (self._directory / "held").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def update(self) -> None:
        """Update the package lists. Errors of the machine's other sources are ignored."""
        self.run("apt-get", "-qq", "update")

    def run(self, program: str, *arguments: str, directory: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run one of apt's programs. Its messages are in English."""
        command = [prerequisites.program(program), f"--config-file={self._directory / 'apt.conf'}", *arguments]
        environment = os.environ | {"LC_ALL": "C"}
        with self.held():
            return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
