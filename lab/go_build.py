"""Builds Go programs from the lab's modules, once, and caches them outside the checkout under a hash of their sources.

All builds use the same flags, so that common dependencies of two modules are compiled once.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from lab import lab_errors


@dataclasses.dataclass(frozen=True, slots=True)
class Build:
    """The arguments of `go build` for one program.

    module: the directory with go.mod, go.sum and, for the lab's own programs, main.go. package: the package, as `go
    build` accepts it. program: the resulting file. links: its other names, as links next to it. stamps: values of
    program variables that the project's own release process would set. cgo: whether it needs C, and so is dynamic.
    """

    title: str
    version: str
    module: Path
    package: str
    program: str
    minutes: int
    links: tuple[str, ...] = ()
    stamps: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cgo: bool = False

    @property
    def directory(self) -> Path:
        """The directory of the built program."""
        digest = hashlib.sha256()
        for name in ("go.mod", "go.sum", "main.go"):
            file = self.module / name
            digest.update(file.read_bytes() if file.exists() else b"")
        return cache_directory() / f"{self.program}-{self.version}-{digest.hexdigest()[:12]}"


def cache_directory() -> Path:
    """Return the cache for build results: `$GPUSHARE_CACHE`, by default below the user's cache directory."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpushare"
    return Path(os.environ.get("GPUSHARE_CACHE") or default)


def required_version(module: Path, dependency: str) -> str:
    """Return the version that a go.mod requires, as `v1.36.2`.

    Raises:
        LabError: it requires none.
    """
    file = module / "go.mod"
    match = re.search(rf"^\s*{re.escape(dependency)} (v\S+)", file.read_text(), re.MULTILINE)
    if match is None:
        raise lab_errors.LabError(f"{file} requires no {dependency}; restore the file")
    return match[1]


def ensure(build: Build) -> Path:
    """Return the directory of the program; build it if it is missing.

    Raises:
        LabError: there is no Go, or the build failed.
    """
    target = build.directory
    if (target / build.program).exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # Do not remove the lock file: another process may be waiting for it, and two could then hold the lock.
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / build.program).exists():
            _build(build, target)
    return target


def program() -> str:
    """Return the path of `go`.

    Raises:
        LabError: there is none.
    """
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise lab_errors.LabError("the lab needs Go 1.26 or newer; install it and put `go` on PATH")
    return go


def _build(build: Build, target: Path) -> None:
    go = program()
    notice = f"lab: building {build.title} {build.version}, once; this takes about {build.minutes} minutes"
    print(notice, file=sys.stderr, flush=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    stamps = [f"-X {variable}={value}" for variable, value in build.stamps.items()]
    flags = ["-trimpath", "-ldflags", " ".join(["-s -w", *stamps])]
    try:
        command = [go, "build", *flags, "-o", str(scratch / build.program), build.package]
        # No version-control stamping: it would make the binary depend on the checkout's state, and fail without git.
        cgo = str(int(build.cgo))
        environment = os.environ | {"CGO_ENABLED": cgo, "GOFLAGS": "-buildvcs=false -mod=readonly"}
        if subprocess.run(command, cwd=build.module, env=environment, check=False).returncode:
            again = f"cd {build.module} && CGO_ENABLED={cgo} go build {build.package}"
            raise lab_errors.LabError(f"building {build.title} failed; repeat it by: {again}")
        for name in build.links:
            (scratch / name).symlink_to(build.program)
        scratch.chmod(0o755)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
