"""Builds the lab's programs: Kubernetes, and the tools that tests of an installation need.

Linking all of Kubernetes takes minutes with a cold Go cache, so checkouts of the same source share the result.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from lab import go_build
from lab.go_build import Build, cache_directory

__all__ = ["PROGRAMS", "cache_directory", "ensure", "kubectl", "program_directory", "tool", "tool_build", "version"]

SOURCE = Path(__file__).parent / "kubernetes"
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")

TOOLS = Path(__file__).parent / "tools"
# By program: its Go module, and its package in that module.
TOOL_PACKAGES = {
    "crane": ("github.com/google/go-containerregistry", "cmd/crane"),
    "helm3": ("helm.sh/helm/v3", "cmd/helm"),
    "helm4": ("helm.sh/helm/v4", "cmd/helm"),
    "kubeconform": ("github.com/yannh/kubeconform", "cmd/kubeconform"),
}


def version() -> str:
    """Return the Kubernetes version in go.mod, as `v1.36.2`."""
    return go_build.required_version(SOURCE, "k8s.io/kubernetes")


def program_directory() -> Path:
    """Return the directory of the built binary, with a link for each program."""
    return _kubernetes().directory


def ensure() -> Path:
    """Return the directory of the Kubernetes programs; build them if they are missing.

    Raises:
        LabError: there is no Go, or the build failed.
    """
    return go_build.ensure(_kubernetes())


def kubectl() -> Path:
    """Return the path of kubectl; build it if it is missing. Alone, it starts in half the time that the binary with all
    programs takes.

    Raises:
        LabError: there is no Go, or the build failed.
    """
    alone = dataclasses.replace(
        _kubernetes(), title="kubectl", package="k8s.io/kubernetes/cmd/kubectl", program="kubectl", minutes=1, links=()
    )
    return go_build.ensure(alone) / alone.program


def tool(program: str) -> Path:
    """Return the path of one of TOOL_PACKAGES; build it if it is missing.

    Raises:
        LabError: there is no Go, or the build failed.
    """
    return go_build.ensure(tool_build(program)) / program


def tool_build(program: str) -> Build:
    """Return the `go build` arguments for one of TOOL_PACKAGES."""
    module, package = TOOL_PACKAGES[program]
    release = go_build.required_version(TOOLS, module)
    stamps = {}
    if program.startswith("helm"):
        major, minor, _ = version().removeprefix("v").split(".", 2)
        stamps[f"{module}/internal/version.version"] = release
        # Without a cluster, Helm 3 compares a chart's kubeVersion with these variables; Helm 4 reads its own go.mod.
        for place in ("chartutil", "lint/rules"):
            stamps[f"{module}/pkg/{place}.k8sVersionMajor"] = major
            stamps[f"{module}/pkg/{place}.k8sVersionMinor"] = minor
    return Build(
        title=program,
        version=release,
        module=TOOLS,
        package=f"{module}/{package}",
        program=program,
        minutes=2,
        stamps=stamps,
    )


def _kubernetes() -> Build:
    major, minor, _ = version().removeprefix("v").split(".", 2)
    # Without these the API server reports v0.0.0-master, and clients complain.
    stamps = {"gitVersion": version(), "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return Build(
        title="Kubernetes",
        version=version(),
        module=SOURCE,
        package=".",
        program="kubernetes",
        minutes=5,
        links=PROGRAMS,
        stamps={f"k8s.io/component-base/version.{key}": value for key, value in stamps.items()},
    )
