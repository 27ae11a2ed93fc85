"""The contents of the images, checked in the files themselves."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import struct
import subprocess
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from config.images import bytecode, contents, layers, packages, sbom
from tests.images.image import Image

ROOT = layers.ROOT
DESCRIPTIONS = {image.name: image for image in contents.IMAGES}
EXTRAS = {"webhook": "webhook", "agent": "deviceplugin", "plugin": ""}
SHARED_AND_USED = {
    "webhook": {"numpy", "pyyaml"},
    "agent": {"pyyaml"},
    "plugin": {"click", "numpy", "pyyaml", "tabulate"},
}
UNCHECKED_HASH = 0b01

PROGRAM = Path(__file__).parent / "programs" / "imports.py"

# The first test builds what is missing.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def name(made: Image) -> str:
    return made.archive.stem


def test_images_have_no_shell_compiler_or_setuid_program(made: Image) -> None:
    programs = {path.name for folder in ("usr/bin", "usr/sbin") for path in (made.root / folder).iterdir()}
    kubectl = {"kubectl"} if DESCRIPTIONS[name(made)].has_kubectl else set()
    assert programs == {"python", "python3", "python3.11", *kubectl}
    assert [member.name for member in made.members if member.mode & 0o6000] == []
    executable = {
        member.name
        for member in made.members
        if member.isfile() and member.mode & 0o111 and not re.search(r"\.so(\.|$)", member.name)
    }
    assert {path for path in executable if not path.endswith((".py", "10-uname"))} == {
        "usr/bin/python3.11",
        *(f"usr/bin/{program}" for program in kubectl),
    }


def test_images_contain_no_trace_of_the_build_machine(made: Image) -> None:
    for member in made.members:
        assert (member.uid, member.gid, member.mtime, member.uname) == (0, 0, 0, ""), member.name
    needles = (str(ROOT).encode(), str(Path.home() / ".cache").encode(), b"/tmp/gpushare-image")
    for path in made.root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            assert not [needle for needle in needles if needle in content], path


def test_every_program_and_library_finds_its_libraries(made: Image) -> None:
    architecture = layers.native()
    loader, _, directory, _ = bytecode.command(made.root, architecture)
    looked_at = 0
    for path in sorted(made.root.rglob("*")):
        # The preloaded library runs in users' containers, so its loader need not be in the image.
        if not path.is_file() or path.is_symlink() or path.is_relative_to(made.root / contents.LIBRARIES):
            continue
        with path.open("rb") as file:
            head = file.read(20)
        if not head.startswith(b"\x7fELF") or struct.unpack("<H", head[16:18])[0] not in (2, 3):
            continue
        listed = subprocess.run(
            [loader, "--inhibit-cache", "--library-path", directory, "--list", path],
            capture_output=True,
            text=True,
            check=False,
        )
        needed = re.findall(r"^\s+(\S+) => (.+?)(?: \(0x|$)", listed.stdout, re.MULTILINE)
        outside = [(wanted, where) for wanted, where in needed if not where.startswith(str(made.root))]
        assert [pair for pair in outside if pair[1] != loader] == [], path
        looked_at += 1
    assert looked_at > 50


def test_all_imports_are_in_the_image(made: Image) -> None:
    interactive = "kubectl_gpushare.interactive"  # needs textual, which no image has
    imported = set(made.python(str(PROGRAM), DESCRIPTIONS[name(made)].module, interactive).split())
    serves = name(made) != "plugin"
    assert {"gpushare.contract", *(["aiohttp", "gpushare.daemon.lifecycle"] if serves else ["click"])} <= imported
    modules = list((ROOT / DESCRIPTIONS[name(made)].module).rglob("*.py"))
    modules = [path for path in modules if path.parent.name != "interactive"]
    assert len(imported) > len(modules) > 50


def test_image_lacks_the_parts_of_others(made: Image) -> None:
    site = {path.name for path in (made.root / contents.SITE).iterdir() if path.is_dir()}
    others = {image.module for image in contents.IMAGES} - {DESCRIPTIONS[name(made)].module}
    assert site & {"lab", "simgpu", "tests", "pip", "setuptools", *others} == set()


def test_all_modules_are_precompiled(made: Image) -> None:
    sources = [path for path in made.root.rglob("*.py") if "__pycache__" not in path.parts]
    assert len(sources) > 500
    for source in sources:
        compiled = source.parent / "__pycache__" / f"{source.stem}.cpython-311.pyc"
        assert int.from_bytes(compiled.read_bytes()[4:8], "little") == UNCHECKED_HASH, source


def test_scanners_find_every_package_and_its_copyright(made: Image) -> None:
    status = made.root / "var/lib/dpkg/status.d"
    assert {path.name for path in status.iterdir()} == set(contents.PACKAGES)
    for path in status.iterdir():
        assert f"Package: {path.name}\n" in path.read_text()
        assert (made.root / "usr/share/doc" / path.name / "copyright").read_text(errors="replace"), path.name
    assert (made.root / "usr/share/doc/gpushare/copyright").read_text() == (ROOT / "LICENSE").read_text()


def test_the_bill_of_materials_matches_the_files(made: Image) -> None:
    bill = json.loads((made.root / sbom.PATH).read_text())
    assert (made.archive.parent / f"{name(made)}-{layers.native()}.cdx.json").read_text() == (
        made.root / sbom.PATH
    ).read_text()
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    own = [component for component in bill["components"] if component["purl"].startswith("pkg:generic/")]
    others = [component for component in bill["components"] if component not in own]
    listed = {component["purl"].partition("?")[0]: component for component in others}
    present = set()
    for path in (made.root / "var/lib/dpkg/status.d").iterdir():
        version = re.search(r"^Version: (\S+)", path.read_text(), re.MULTILINE)
        assert version is not None
        quoted = version[1].replace("+", "%2B").replace(":", "%3A").replace("~", "~")
        present.add(f"pkg:deb/debian/{path.name.replace('+', '%2B')}@{quoted}")
    for distribution in importlib.metadata.distributions(path=[str(made.root / contents.SITE)]):
        present.add(f"pkg:pypi/{canonicalize_name(distribution.name)}@{distribution.version}")
    assert {url.replace("%3A", ":") for url in listed} == {url.replace("%3A", ":") for url in present}
    locked = {package.sha256 for package in packages.locked(layers.native())}
    assert {digest["content"] for component in others for digest in component.get("hashes", ())} == locked
    libraries = sorted((made.root / contents.LIBRARIES).glob("libgpushare-*.so"))
    programs = sorted((made.root / "usr/bin").glob("kubectl"))
    assert sorted(digest["content"] for component in own for digest in component.get("hashes", ())) == sorted(
        hashlib.sha256(path.read_bytes()).hexdigest() for path in [*libraries, *programs]
    )
    assert sorted(component["name"] for component in own) == sorted(
        ["gpushare", *["libgpushare"] * len(libraries), *["kubectl"] * len(programs)]
    )
    assert all(component["licenses"][0]["expression"] for component in bill["components"])


def test_the_wheels_are_those_of_the_images_extra() -> None:
    for image in contents.IMAGES:
        environment = {**{key: str(value) for key, value in default_environment().items()}, "python_version": "3.11"}
        todo = {(wanted, "") for wanted in SHARED_AND_USED[image.name]}
        for requirement in map(Requirement, importlib.metadata.requires("gpushare") or ()):
            marker = requirement.marker
            if marker is not None and marker.evaluate(environment | {"extra": EXTRAS[image.name]}):
                todo.add((canonicalize_name(requirement.name), ""))
        seen: set[tuple[str, str]] = set()
        while todo:
            project, extra = item = todo.pop()
            if item in seen or project in contents.WHEELS_LEFT_OUT:
                continue
            seen.add(item)
            for requirement in map(Requirement, importlib.metadata.requires(project) or ()):
                if requirement.marker is None or requirement.marker.evaluate(environment | {"extra": extra}):
                    todo |= {(canonicalize_name(requirement.name), extra) for extra in requirement.extras or {""}}
        assert {project for project, _ in seen} == set(image.wheels), image.name


def test_only_included_parts_of_numpy_are_imported(unpacked: dict[str, Image]) -> None:
    used = set()
    for path in (ROOT / "gpushare").rglob("*.py"):
        used |= set(re.findall(r"\bnp\.([a-zA-Z_]\w*)", path.read_text()))
    assert {"zeros", "lexsort"} <= used
    script = "import sys, numpy; print(*[name for name in sys.argv[1:] if not hasattr(numpy, name)])"
    assert unpacked["webhook"].python("-c", script, *sorted(used)).split() == []


def test_the_agent_has_the_library_for_both_processors(unpacked: dict[str, Image]) -> None:
    directory = unpacked["agent"].root / contents.LIBRARIES
    machines = {"x86_64": 62, "aarch64": 183}  # as in elf.h
    for machine, number in machines.items():
        head = (directory / f"libgpushare-{machine}.so").read_bytes()[:20]
        assert struct.unpack("<H", head[18:20]) == (number,)
    assert (directory / "libgpushare.so").resolve().name == f"libgpushare-{contents.MACHINES[layers.native()]}.so"


def test_the_entry_point_matches_the_manifests(made: Image) -> None:
    settings = made.config["config"]
    image = DESCRIPTIONS[name(made)]
    assert settings["Entrypoint"] == ["python", "-m", image.module]
    assert settings["User"] == {"agent": "0:0"}.get(name(made), "65532:65532")
    assert settings["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert "org.opencontainers.image.revision" not in settings["Labels"]
    assert f":{settings['User'].partition(':')[0]}:" in (made.root / "etc/passwd").read_text()
