"""How the agent's own container was created, from real kernel texts and a real loaded driver."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deviceplugin import agent_settings
from deviceplugin.injection import runtime_inspection
from tests.deviceplugin import simulated
from tests.deviceplugin.injection.test_driver_root import install

LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.15"
MAPS = f"""7f1c00000000-7f1c00200000 r-xp 00000000 00:2f 1234                       {LIBRARY}
7f1c00400000-7f1c00600000 r--p 00000000 00:2f 99                         /usr/lib/x86_64-linux-gnu/libc.so.6
7f1c00600000-7f1c00601000 rw-p 00000000 00:00 0
"""
ROOT = "1 0 0:50 / / rw,relatime - overlay overlay rw,lowerdir=/a\n"
GIVEN = f"2 1 259:1 {LIBRARY} {LIBRARY} ro,nosuid,nodev,relatime - ext4 /dev/root rw\n"
VOLUME = "3 1 259:1 / /driver-root ro,relatime - ext4 /dev/root rw\n4 1 0:26 /cdi /run/cdi rw - tmpfs tmpfs rw\n"


@pytest.mark.parametrize(
    ("mountinfo", "library", "given"),
    [
        pytest.param(ROOT + GIVEN, LIBRARY, True, id="a runtime mounted the file"),
        pytest.param(ROOT, LIBRARY, False, id="in the image"),
        pytest.param(ROOT + VOLUME, f"/driver-root{LIBRARY}", False, id="in a volume"),
        pytest.param(ROOT + GIVEN, f"/driver-root{LIBRARY}", False, id="another file is mounted"),
    ],
)
def test_runtime_gave_the_driver_if_its_library_is_a_mount(mountinfo: str, library: str, given: bool) -> None:
    assert (
        runtime_inspection.is_driver_mounted(MAPS.replace(LIBRARY, library), runtime_inspection.mount_points(mountinfo))
        is given
    )


def test_distinguishes_mounted_directories(tmp_path: Path) -> None:
    points = runtime_inspection.mount_points(ROOT + VOLUME)
    assert runtime_inspection.is_mounted(Path("/driver-root/etc"), points)
    assert not runtime_inspection.is_mounted(Path("/var/elsewhere"), points)
    (tmp_path / "run").symlink_to("/driver-root")  # like /var/run, which points to /run
    assert runtime_inspection.is_mounted(tmp_path / "run" / "cdi", points)


CONTAINERD = """
version = 3
imports = ["/etc/containerd/conf.d/*.toml"]
[plugins."io.containerd.cri.v1.runtime"]
enable_cdi = true
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"
"""
OPERATORS = """
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "nvidia"
"""


def inspect(tmp_path: Path, *, host: Path, mountinfo: str = ROOT, **environment: str) -> dict[str, object]:
    """Inspect with this mountinfo and the process's own maps."""
    own = tmp_path / "self"
    own.mkdir()
    (own / "mountinfo").write_text(mountinfo)
    (own / "maps").write_text(MAPS)
    variables = {"NODE_NAME": "n", "POD_UID": "u", "CONTAINER_DRIVER_ROOT": str(host), **environment}
    parsed = agent_settings.parse([f"--cdi-directory={tmp_path / 'cdi'}"], variables)
    return dataclasses.asdict(runtime_inspection.inspect(parsed, variables, own=own))


def test_pod_without_mounts_has_a_cdi_problem(tmp_path: Path) -> None:
    facts = inspect(tmp_path, host=tmp_path / "nothing", NVIDIA_VISIBLE_DEVICES="all")
    assert (facts["in_pod"], facts["driver_requested"], facts["driver_mounted"]) == (True, True, False)
    assert "is not mounted from the host: add the component cdi" in str(facts["cdi_problem"])


def test_reads_driver_and_runtime_configuration_from_the_host(tmp_path: Path) -> None:
    host = install(tmp_path / "host")
    (host / "etc/containerd/conf.d").mkdir(parents=True)
    (host / "etc/containerd/config.toml").write_text(CONTAINERD)
    (host / "etc/containerd/conf.d/99-nvidia.toml").write_text(OPERATORS)
    (host / "etc/containerd/conf.d/broken.toml").write_text("[")
    mountinfo = f"{ROOT}5 1 0:26 / {tmp_path.resolve() / 'cdi'} rw - tmpfs tmpfs rw\n"
    facts = inspect(tmp_path, host=host, mountinfo=mountinfo, NVIDIA_VISIBLE_DEVICES="void")
    assert facts["cdi_problem"] == ""
    assert (facts["driver_requested"], facts["cdi_enabled"], facts["default_runtime"]) == (False, True, "nvidia")


def test_host_without_driver_is_a_cdi_problem(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    mountinfo = f"{ROOT}5 1 0:26 / {tmp_path.resolve() / 'cdi'} rw - tmpfs tmpfs rw\n"
    facts = inspect(tmp_path, host=tmp_path / "host", mountinfo=mountinfo)
    assert f"the host's driver is not visible at {tmp_path / 'host'}" in str(facts["cdi_problem"])


@pytest.mark.slow
@pytest.mark.parametrize("mounted", [True, False])
def test_detects_a_real_mounted_library(gpus: Path, tmp_path: Path, mounted: bool) -> None:
    """Mount the library in its own mount namespace, as a runtime does."""
    (tmp_path / "lib").mkdir()
    target = tmp_path / "lib" / "libnvidia-ml.so.1"
    source = simulated.BUILD / "libnvidia-ml.so.1"
    target.write_bytes(b"" if mounted else source.read_bytes())
    program = (
        "import json, pathlib; from deviceplugin.injection import driver_root, runtime_inspection as seen; "
        "driver_root.load_nvml(pathlib.Path('/nothing')); own = pathlib.Path('/proc/self'); "
        "points = seen.mount_points((own / 'mountinfo').read_text()); "
        "print(json.dumps(seen.is_driver_mounted((own / 'maps').read_text(), points)))"
    )
    mount = f"mount --bind {source} {target} && " if mounted else ""
    command = ["unshare", "--mount", "/bin/sh", "-c", f'{mount}exec "$@"', "sh", sys.executable, "-c", program]
    environment = {**simulated.environment(gpus), "LD_LIBRARY_PATH": str(tmp_path / "lib")}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    if "Operation not permitted" in result.stderr:
        pytest.skip("needs to be root, to make a mount namespace")
    assert json.loads(result.stdout) is mounted, result.stderr


RUNC = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = 'runc'\n"
K3S = "var/lib/rancher/k3s/agent/etc/containerd/config.toml"
MICROK8S = "var/snap/microk8s/current/args/containerd.toml"


def layers(directory: str) -> str:
    """Return the root mount of a container created by a containerd with this directory."""
    state = f"{directory}/io.containerd.snapshotter.v1.overlayfs/snapshots"
    return f"1 0 0:50 / / rw,relatime - overlay overlay rw,lowerdir={state}/1/fs,upperdir={state}/2/fs,workdir={state}/2/work\n"


def written(host: Path, **texts: str) -> Path:
    for name, text in texts.items():
        path = host / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return host


@pytest.mark.parametrize(
    ("mountinfo", "default"),
    [
        pytest.param(layers("/var/lib/containerd"), "nvidia", id="containerd"),
        pytest.param(layers("/data/containerd"), "nvidia", id="containerd elsewhere"),
        pytest.param(layers("/var/lib/rancher/k3s/agent/containerd"), "runc", id="k3s"),
        pytest.param(layers("/var/lib/rancher/rke2/agent/containerd"), None, id="RKE2, without a file"),
        pytest.param(layers("/data/k3s/agent/containerd"), "nvidia-cdi", id="k3s elsewhere"),
        pytest.param(layers("/var/snap/microk8s/common/var/lib/containerd"), "runc", id="MicroK8s"),
        pytest.param(layers("/var/lib/k0s/containerd"), "nvidia-legacy", id="k0s"),
        pytest.param(
            "1 0 0:50 / / rw - overlay overlay rw,upperdir=/var/lib/containers/storage/overlay/2/diff\n",
            None,
            id="CRI-O",
        ),
        pytest.param("1 0 0:50 / / rw - fuse.stargz stargz rw\n", "runc", id="layers without an overlay"),
    ],
)
def test_reads_only_the_containerd_of_the_agents_container(tmp_path: Path, mountinfo: str, default: str | None) -> None:
    host = written(
        tmp_path,
        **{
            "etc/containerd/config.toml": OPERATORS,
            K3S: RUNC,
            "data/k3s/agent/etc/containerd/config.toml": RUNC.replace("runc", "nvidia-cdi"),
            MICROK8S: RUNC,
            "etc/k0s/containerd.toml": "version = 3\n",
            "etc/k0s/containerd.d/nvidia.toml": RUNC.replace("runc", "nvidia-legacy"),
        },
    )
    assert runtime_inspection.containerd_configuration(host, mountinfo).default_runtime == default


def test_follows_imports_in_containerds_order(tmp_path: Path) -> None:
    folder = "var/lib/rancher/k3s/agent/etc/containerd"
    imports = f'version = 3\nimports = ["/{folder}/config-v3.toml.d/*.toml", "last.toml"]\n'
    texts = {
        K3S: imports,
        f"{folder}/config-v3.toml.d/1.toml": RUNC,
        f"{folder}/config-v3.toml.d/2.toml": RUNC.replace("runc", "nvidia"),
        f"{folder}/config-v3.toml.d/3.conf": RUNC.replace("runc", "passed over"),
    }
    mountinfo = layers("/var/lib/rancher/k3s/agent/containerd")
    assert (
        runtime_inspection.containerd_configuration(written(tmp_path, **texts), mountinfo).default_runtime == "nvidia"
    )
    more = {f"{folder}/last.toml": 'imports = ["config.toml", "deeper/*"]', f"{folder}/deeper/one": RUNC}
    assert runtime_inspection.containerd_configuration(written(tmp_path, **more), mountinfo).default_runtime == "runc"


def test_reading_host_files_is_bounded(tmp_path: Path) -> None:
    """Files can be endless, special, circular or too many."""
    mountinfo, folder = layers("/var/lib/containerd"), "etc/containerd"
    host = written(tmp_path, **{f"{folder}/config.toml": OPERATORS + "#" * 300_000})
    assert runtime_inspection.containerd_configuration(host, mountinfo) == runtime_inspection.ContainerdConfig()
    imports = f'imports = ["config.toml", "pipe", "zero", "/{folder}/many/*"]\n'
    written(host, **{f"{folder}/config.toml": imports + OPERATORS})
    os.mkfifo(host / folder / "pipe")
    (host / folder / "zero").symlink_to("/dev/zero")
    chain = {f"{folder}/many/{number:04}": f'imports = ["/{folder}/many/*"]' for number in range(100)}
    written(host, **chain)
    assert runtime_inspection.containerd_configuration(host, mountinfo) == runtime_inspection.ContainerdConfig(
        default_runtime="nvidia"
    )
    written(host, **{f"{folder}/many/0099": RUNC})  # beyond the limit
    assert runtime_inspection.containerd_configuration(host, mountinfo) == runtime_inspection.ContainerdConfig(
        default_runtime="nvidia"
    )
