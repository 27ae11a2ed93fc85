"""Images for the other architecture, built on this one: their programs run in an emulator; both are pushed as one
name.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from config.images import build, contents, layers, push
from lab import lab_errors, prerequisites
from tests.images import image

EMULATOR = "qemu-aarch64-static"
IMPORTED = {"webhook": "numpy, cryptography.x509, webhook.cluster_process", "agent": "grpc, pynvml, deviceplugin.agent"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # builds what is missing
    pytest.mark.skipif(layers.native() != "amd64", reason="emulates arm64 on amd64"),
]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> build.Archives:
    return build.ensure(tuple(contents.MACHINES), directory=tmp_path_factory.mktemp("both"))


def test_the_components_import_on_64_bit_arm(tmp_path: Path) -> None:
    alone = build.ensure(("arm64",), directory=tmp_path / "archives")
    for name, archive in (("webhook", alone.webhook), ("agent", alone.agent)):
        made = image.unpacked(archive.path, tmp_path / name)
        paths = {"PYTHONHOME": made.root / "usr", "PYTHONPATH": made.root / contents.SITE}
        flags = [word for key, path in paths.items() for word in ("-E", f"{key}={path}")]
        program = made.root / f"usr/bin/python{contents.PYTHON}"
        command = [prerequisites.program(EMULATOR), "-L", made.root, *flags, program, "-S", "-c"]
        script = f"import platform, {IMPORTED[name]}; print(platform.machine())"
        done = subprocess.run([*command, script], capture_output=True, text=True, check=False, timeout=300)
        assert done.stdout == "aarch64\n", done.stderr
        assert (made.config["architecture"], made.config["os"]) == ("arm64", "linux")
    assert (tmp_path / "agent/opt/gpushare/libgpushare.so").resolve().name == "libgpushare-aarch64.so"


def test_one_name_refers_to_both_architectures(registry: str, both: build.Archives, archives: build.Archives) -> None:
    places = push.push(both, f"{registry}/both", options=["--dest-tls-verify=false"])
    place = places["agent"]
    reference = f"docker://{place['repository']}@{place['digest']}"
    command = [prerequisites.program("skopeo"), "inspect", "--tls-verify=false", "--raw", reference]
    index = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    digests = {manifest["platform"]["architecture"]: manifest["digest"] for manifest in index["manifests"]}
    assert set(digests) == set(contents.MACHINES)
    assert digests["amd64"] == archives.agent.digest


def test_an_unsupported_architecture_is_named_in_the_error() -> None:
    with pytest.raises(lab_errors.LabError, match=r"no images for riscv64; .* amd64, arm64"):
        build.ensure(("riscv64",))
