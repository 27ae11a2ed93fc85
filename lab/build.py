"""The lab's Kubernetes binary: built once from `lab/kubernetes`, kept outside the checkout by what it was built from.

Linking all of Kubernetes takes minutes on a cold Go cache, so the result is shared by all checkouts of the same source.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from lab import errors

SOURCE = Path(__file__).parent / "kubernetes"
SOURCE_FILES = ("go.mod", "go.sum", "main.go")
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
BINARY = "kubernetes"


def cache_directory() -> Path:
    """Return where built things are kept: `$GPUSHARE_CACHE`, by default below the user's cache directory."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpushare"
    return Path(os.environ.get("GPUSHARE_CACHE") or default)


def version() -> str:
    """Return the Kubernetes version that go.mod asks for, as `v1.36.2`."""
    match = re.search(r"^\s*k8s\.io/kubernetes (v\S+)", (SOURCE / "go.mod").read_text(), re.MULTILINE)
    if match is None:
        raise errors.LabError(f"{SOURCE / 'go.mod'} requires no k8s.io/kubernetes; restore the file")
    return match[1]


def program_directory() -> Path:
    """Return the directory that holds, or will hold, the binary and a link named like each program."""
    digest = hashlib.sha256()
    for name in SOURCE_FILES:
        digest.update((SOURCE / name).read_bytes())
    return cache_directory() / f"kubernetes-{version()}-{digest.hexdigest()[:12]}"


def ensure() -> Path:
    """Return the directory of the Kubernetes programs, building them first where they are missing.

    Raises:
        LabError: there is no Go, or the build failed.
    """
    target = program_directory()
    if (target / BINARY).exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # The file stays: removing a lock file that another process may be waiting for would give two holders.
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / BINARY).exists():
            _build(target)
    return target


def _build(target: Path) -> None:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise errors.LabError("the lab needs Go 1.26 or newer to build Kubernetes; install it and put `go` on PATH")
    print(f"lab: building Kubernetes {version()}, once; this takes about five minutes", file=sys.stderr, flush=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        command = [go, "build", "-trimpath", "-ldflags", _linker_flags(), "-o", str(scratch / BINARY), "."]
        # No version-control stamping: it would make the binary depend on the checkout's state, and fail without git.
        environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false -mod=readonly"}
        if subprocess.run(command, cwd=SOURCE, env=environment, check=False).returncode:
            raise errors.LabError(f"building Kubernetes failed; repeat it by: cd {SOURCE} && CGO_ENABLED=0 go build .")
        for name in PROGRAMS:
            (scratch / name).symlink_to(BINARY)
        scratch.chmod(0o755)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _linker_flags() -> str:
    """Stamp the version: without it the API server calls itself v0.0.0-master, and clients complain."""
    major, minor, _ = version().removeprefix("v").split(".", 2)
    stamp = {"gitVersion": version(), "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    stamps = [f"-X k8s.io/component-base/version.{key}={value}" for key, value in stamp.items()]
    return " ".join(["-s -w", *stamps])
