"""The tests' tools share modules with the lab's Kubernetes: compiling them separately would take minutes more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab import build, go_build, lab_errors

REQUIRED = re.compile(r"^\s*(\S+) (v\S+)(?: // indirect)?$", re.MULTILINE)
REPLACED = re.compile(r"^\s*(\S+) => (\S+) (v\S+)$", re.MULTILINE)
# Small modules that a tool needs in a newer version. Any other one would compile Kubernetes' packages a second time.
NEWER = {
    "github.com/Azure/go-ansiterm",
    "github.com/go-errors/errors",
    "github.com/go-openapi/jsonpointer",
    "github.com/go-openapi/jsonreference",
    "github.com/go-openapi/swag",
    "github.com/mailru/easyjson",
    "github.com/moby/term",
    "github.com/spf13/pflag",
    *("k8s.io/apiextensions-apiserver", "k8s.io/kubectl"),  # required as v0.0.0 and v0.35.1, with the same replacement
}


def required(module: Path) -> dict[str, str]:
    return dict(REQUIRED.findall((module / "go.mod").read_text()))


def test_tools_and_kubernetes_share_module_versions() -> None:
    tools, kubernetes = required(build.TOOLS), required(build.SOURCE)
    both = tools.keys() & kubernetes.keys()
    assert {name for name in both if tools[name] != kubernetes[name]} == NEWER
    assert len(both) > 50


def test_kubernetes_replacements_are_equal() -> None:
    replaced = [set(REPLACED.findall((module / "go.mod").read_text())) for module in (build.TOOLS, build.SOURCE)]
    assert replaced[0] == replaced[1]


def test_each_program_and_module_version_has_its_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSHARE_CACHE", str(tmp_path))
    before = {name: build.tool_build(name).directory for name in build.TOOL_PACKAGES}
    assert len({*before.values(), build.program_directory()}) == len(build.TOOL_PACKAGES) + 1
    changed = tmp_path / "tools"
    changed.mkdir()
    for name in ("go.mod", "go.sum"):
        (changed / name).write_text((build.TOOLS / name).read_text())
    (changed / "go.sum").write_text("changed")
    monkeypatch.setattr(build, "TOOLS", changed)
    assert not {build.tool_build(name).directory for name in build.TOOL_PACKAGES} & set(before.values())


def test_module_without_a_version_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("module x\n")
    with pytest.raises(lab_errors.LabError, match=r"go\.mod requires no helm\.sh/helm/v4; restore the file"):
        go_build.required_version(tmp_path, "helm.sh/helm/v4")


@pytest.mark.slow
def test_failed_build_names_its_command_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSHARE_CACHE", str(tmp_path / "cache"))
    module = tmp_path / "module"
    module.mkdir()
    (module / "go.mod").write_text("module x\n\ngo 1.26.0\n")
    (module / "main.go").write_text("package main\n\nfunc main() { nothing }\n")
    broken = go_build.Build("broken", "v1", module, ".", "broken", 1)
    with pytest.raises(lab_errors.LabError, match=rf"building broken failed; repeat it by: cd {module} && "):
        go_build.ensure(broken)
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []

    (module / "main.go").write_text("package main\n\nfunc main() {}\n")
    assert (go_build.ensure(broken) / "broken").exists()
