"""The host's driver, for an agent whose container got no driver from a runtime."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deviceplugin.injection import driver_root
from deviceplugin.injection.driver_root import DriverRoot
from tests.deviceplugin import agent_process, simulated
from tests.deviceplugin.test_agent_without_cluster import unreachable

DEBIAN, RED_HAT = "usr/lib/x86_64-linux-gnu", "usr/lib64"


def install(root: Path, folder: str = DEBIAN) -> Path:
    """Install a driver below `root`: the simulated management library under its usual names, and an empty libcuda."""
    (root / folder).mkdir(parents=True)
    (root / folder / "libcuda.so.550.54.15").touch()
    shutil.copy(simulated.BUILD / "libnvidia-ml.so.1", root / folder / "libnvidia-ml.so.550.54.15")
    (root / folder / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.550.54.15")
    return root


@pytest.mark.parametrize(
    ("at", "named", "found"),
    [
        pytest.param("", "/", "/", id="the host's own"),
        pytest.param("", "/run/nvidia/driver", "/run/nvidia/driver", id="the operator's, mounted"),
        pytest.param("run/nvidia/driver", "/run/nvidia/driver", "/run/nvidia/driver", id="below a mounted host"),
        pytest.param("run/nvidia/driver", "/", "/run/nvidia/driver", id="the operator's, not configured"),
        pytest.param("opt/driver", "/opt/driver", "/opt/driver", id="a custom place"),
        pytest.param("opt/driver", "/", None, id="an unknown place"),
        pytest.param("opt/driver", "/run/nvidia/driver", None, id="not at the configured place"),
    ],
)
def test_finds_the_driver_root(tmp_path: Path, gpus: Path, at: str, named: str, found: str | None) -> None:
    install(tmp_path / at, RED_HAT)
    assert driver_root.find(tmp_path, named) == (DriverRoot(tmp_path / at, found) if found else None)


def test_finds_no_driver_in_a_missing_directory(tmp_path: Path) -> None:
    assert driver_root.find(tmp_path / "nothing") is None


def loaded(gpus: Path, mounted: Path, *, library_path: str = "") -> subprocess.CompletedProcess[str]:
    """Run a process that prints the loaded library and the number of GPUs."""
    program = (
        "import sys, pathlib; from deviceplugin.injection import driver_root; from deviceplugin.hardware import nvml; "
        "print(driver_root.load_nvml(pathlib.Path(sys.argv[1]))); print(len(nvml.Nvml().snapshot().gpus))"
    )
    environment = {**simulated.environment(gpus), "LD_LIBRARY_PATH": library_path}
    command = [sys.executable, "-c", program, mounted]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_loads_nvml_from_the_driver_root_if_the_path_has_none(gpus: Path, tmp_path: Path) -> None:
    host = install(tmp_path / "host")
    assert loaded(gpus, host).stdout.split() == [str(host / DEBIAN / "libnvidia-ml.so.1"), "4"]


@pytest.mark.slow
def test_prefers_nvml_that_a_runtime_mounted(gpus: Path, tmp_path: Path) -> None:
    host = install(tmp_path / "host")
    assert loaded(gpus, host, library_path=str(simulated.BUILD)).stdout.split() == ["None", "4"]


def test_reports_a_library_that_cannot_be_loaded(gpus: Path, tmp_path: Path) -> None:
    host = install(tmp_path / "host")
    (host / DEBIAN / "libnvidia-ml.so.550.54.15").write_text("no library")
    result = loaded(gpus, host)
    assert "Could not load the host's driver library" in result.stderr
    assert "libnvidia-ml.so.1 is not on the library path" in result.stderr


@pytest.mark.slow
async def test_agent_runs_with_the_driver_root_alone(short_path: Path, gpus: Path) -> None:
    environment = {"LD_LIBRARY_PATH": "", "CONTAINER_DRIVER_ROOT": str(install(short_path / "host"))}
    kubeconfig = unreachable(short_path)
    async with agent_process.running(
        "node-a", short_path, kubeconfig=kubeconfig, gpus=gpus, environment=environment
    ) as agent:
        assert (await agent.get("/healthz"))[0] == 200
        assert agent.said("Loaded the host's driver library")
        assert await agent.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("mounted", [True, False])
async def test_agent_waits_for_a_driver_only_if_it_can_appear(short_path: Path, gpus: Path, mounted: bool) -> None:
    host = short_path / "host"
    if mounted:
        host.mkdir()
    program = (
        "-c",
        "import sys; from deviceplugin import __main__, agent; agent.DRIVER_RETRY_SECONDS = 0.05; "
        "agent.GIVE_UP_SECONDS = 0.2; sys.exit(__main__.main())",
    )
    environment = {"LD_LIBRARY_PATH": "", "CONTAINER_DRIVER_ROOT": str(host)}
    async with agent_process.running(
        "node-a",
        short_path,
        kubeconfig=unreachable(short_path),
        gpus=gpus,
        environment=environment,
        program=program,
        more=("--fail-on-init-error=false",),
    ) as agent:
        await agent.until("No driver found")
        if mounted:
            install(host / "run/nvidia/driver")  # as the operator's driver container does at the end
            await agent.until("Serving")
            assert await agent.stop() == 0
        else:
            assert await agent.ended() == 1
            assert any("so that the next one gets a driver" in line["msg"] for line in agent.lines)
