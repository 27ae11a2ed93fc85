"""How the simulated NVIDIA runtime changes a container's configuration, when run as containerd runs it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from lab import oci_runtime
from lab.runtime import create

FIRST = "GPU-11111111-1111-1111-1111-111111111111"
SECOND = "GPU-22222222-2222-2222-2222-222222222222"
FILES = [f"gpu0-{FIRST}", f"gpu1-{SECOND}"]


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ([], None),
        (["NVIDIA_VISIBLE_DEVICES="], None),
        (["NVIDIA_VISIBLE_DEVICES=void"], None),
        (["NVIDIA_VISIBLE_DEVICES=none"], []),
        (["NVIDIA_VISIBLE_DEVICES=all"], ["all"]),
        ([f"NVIDIA_VISIBLE_DEVICES={FIRST},1"], [FIRST, "1"]),
        (["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=0"], ["0"]),  # the last one counts, as for a program
        (["MY_NVIDIA_VISIBLE_DEVICES=all"], None),
    ],
)
def test_environment_variable_selects_devices(environment: list[str], names: list[str] | None) -> None:
    assert create.requested(environment) == names


@pytest.mark.parametrize(
    ("names", "files"),
    [
        ([], []),
        (["all"], FILES),
        ([SECOND], FILES[1:]),
        (["0"], FILES[:1]),
        (["1", FIRST], FILES),
        (["0", "0"], FILES[:1]),
    ],
)
def test_devices_are_found_by_uuid_and_by_index(names: list[str], files: list[str]) -> None:
    assert create.select(names, FILES) == files


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / "devices").mkdir(exist_ok=True)
        (tmp_path / "devices" / name).touch()
    for name in create.DRIVER:
        (tmp_path / "libraries").mkdir(exist_ok=True)
        (tmp_path / "libraries" / name).touch()
    (tmp_path / "bundle").mkdir()
    return tmp_path / "bundle"


def run(
    bundle: Path, visible: str, *, verb: str = "create", mounts: tuple[str, ...] = (), cdi: str = ""
) -> tuple[int, list[str]]:
    """Run the runtime's script, with `true` as runc; return its exit status and the container's mount points."""
    runtime = bundle.parent / "runtime"
    here = bundle.parent
    runtime.write_text(oci_runtime.script(here / "devices", here / "libraries", here / "cdi", "/bin/true"))
    config = {
        "process": {"env": ["PATH=/bin", f"NVIDIA_VISIBLE_DEVICES={visible}"]},
        "mounts": [{"destination": path} for path in ("/proc", *mounts)],
        "annotations": {"cdi.k8s.io/nvidia-device-plugin_1": cdi} if cdi else {},
    }
    (bundle / "config.json").write_text(json.dumps(config))
    command = ["sh", runtime, "--root", "/r", f"--log={bundle}/log.json", verb, "--bundle", bundle, "id"]
    status = subprocess.run(command, check=False, capture_output=True).returncode
    return status, [mount["destination"] for mount in json.loads((bundle / "config.json").read_text())["mounts"]]


def test_container_gets_the_libraries_and_only_its_gpus(bundle: Path) -> None:
    libraries = [f"{directory}/{name}" for name, directory in create.DRIVER.items()]
    assert run(bundle, SECOND) == (0, ["/proc", *libraries, f"/dev/simgpu/{FILES[1]}"])
    assert run(bundle, "none") == (0, ["/proc", *libraries])


def test_container_with_a_gpu_gets_the_rendezvous_file(bundle: Path) -> None:
    (bundle.parent / "devices" / create.RENDEZVOUS).touch()
    assert run(bundle, SECOND)[1][-2:] == [f"/dev/simgpu/{FILES[1]}", "/dev/simgpu/rendezvous"]
    assert "/dev/simgpu/rendezvous" not in run(bundle, "none")[1]


@pytest.mark.slow
def test_container_with_the_driver_may_open_its_device_file(bundle: Path) -> None:
    (bundle.parent / "devices" / create.CONTROL).symlink_to("/dev/null")
    for visible in (SECOND, "none"):
        run(bundle, visible)
        linux = json.loads((bundle / "config.json").read_text())["linux"]
        null = {"type": "c", "major": 1, "minor": 3}
        assert linux["devices"] == [{**null, "path": "/dev/simgpu/control", "fileMode": 0o666}]
        assert linux["resources"]["devices"] == [{**null, "allow": True, "access": "rw"}]
    run(bundle, "void")
    assert "linux" not in json.loads((bundle / "config.json").read_text())


def test_other_containers_and_verbs_are_unchanged(bundle: Path) -> None:
    assert run(bundle, "void") == (0, ["/proc"])
    assert run(bundle, "all", verb="delete") == (0, ["/proc"])


def test_unknown_gpu_fails_the_container_with_a_message_for_containerd(bundle: Path) -> None:
    assert run(bundle, "GPU-unknown") == (1, ["/proc"])
    message = json.loads((bundle / "log.json").read_text())["msg"]
    assert f"names GPU-unknown, which is not a GPU of this node (it has: {FIRST}, {SECOND})" in message


def test_missing_driver_fails_the_container_with_a_remedy(bundle: Path) -> None:
    (bundle.parent / "libraries" / "libcuda.so.1").unlink()
    assert run(bundle, "all") == (1, ["/proc"])
    assert "libcuda.so.1 is not there; build the simulated driver" in (bundle / "log.json").read_text()


def test_a_mig_device_is_in_the_file_of_its_gpu(bundle: Path) -> None:
    (bundle.parent / "devices" / FILES[1]).write_bytes(b"\1\0MIG-1234\0\0")
    assert run(bundle, "MIG-1234")[1][-1] == f"/dev/simgpu/{FILES[1]}"
    assert run(bundle, "MIG-123")[0] == 1


def test_mounts_select_devices_if_the_variable_says_so(bundle: Path) -> None:
    asked = (f"{create.VOLUME_MOUNTS}/{FIRST}",)
    assert run(bundle, create.VOLUME_MOUNTS, mounts=asked)[1][-1] == f"/dev/simgpu/{FILES[0]}"


def test_annotation_selects_cdi_devices(bundle: Path) -> None:
    (bundle.parent / "cdi").mkdir()
    edits = {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}
    document = {"kind": "a.com/gpu", "devices": [{"name": "1"}], "containerEdits": edits}
    (bundle.parent / "cdi" / "a.json").write_text(json.dumps(document))
    assert run(bundle, "all", cdi="a.com/gpu=1")[1][-1] == f"/dev/simgpu/{FILES[1]}"
    assert "NVIDIA_VISIBLE_DEVICES=void" in (bundle / "config.json").read_text()
    assert run(bundle, "all", cdi="a.com/gpu=2") == (1, ["/proc"])
    assert "unresolvable CDI devices a.com/gpu=2" in (bundle / "log.json").read_text()


def test_foreign_cdi_device_gives_the_gpus_of_its_device_nodes(tmp_path: Path) -> None:
    nodes = [{"path": path} for path in ("/dev/nvidia1", "/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")]
    document = {
        "kind": "gpushare.io/share",
        "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
        "devices": [{"name": "abc", "containerEdits": {"deviceNodes": nodes, "env": ["A=1"]}}],
    }
    (tmp_path / "share.json").write_text(json.dumps(document))
    result = create.described({"cdi.k8s.io/x": "gpushare.io/share=abc"}, str(tmp_path))
    assert result == (["1", "0"], ["NVIDIA_VISIBLE_DEVICES=void", "A=1"], [])
    with pytest.raises(create.UnknownDeviceError):
        create.described({"cdi.k8s.io/x": "gpushare.io/share=abd"}, str(tmp_path))


def test_mounts_of_a_cdi_device_replace_those_at_the_same_path(bundle: Path) -> None:
    (bundle.parent / "cdi").mkdir()
    options = ["rw", "rbind"]
    mounts = [{"containerPath": "/dev/shm", "hostPath": "/run/shm", "options": options}]
    edits = {"deviceNodes": [{"path": "/dev/nvidia1"}], "mounts": mounts}
    common = {"mounts": [{"containerPath": "/usr/bin/x", "hostPath": "/usr/bin/x", "options": ["ro"]}]}
    document = {"kind": "a.com/share", "devices": [{"name": "s", "containerEdits": edits}], "containerEdits": common}
    (bundle.parent / "cdi" / "a.json").write_text(json.dumps(document))
    status, there = run(bundle, "void", mounts=("/dev/shm", "/etc/hosts"), cdi="a.com/share=s")
    assert (status, there[:3], there[-1]) == (0, ["/proc", "/etc/hosts", "/dev/shm"], f"/dev/simgpu/{FILES[1]}")
    (mount,) = [
        mount
        for mount in json.loads((bundle / "config.json").read_text())["mounts"]
        if mount["destination"] == "/dev/shm"
    ]
    assert mount == {"type": "bind", "source": "/run/shm", "destination": "/dev/shm", "options": options}
