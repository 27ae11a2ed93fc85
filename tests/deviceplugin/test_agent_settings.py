"""The agent's flags and environment variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from deviceplugin import agent_settings


def test_in_a_pod_only_the_node_name_is_required() -> None:
    settings = agent_settings.parse([], {"NODE_NAME": "node-a"})
    assert settings.node_name == "node-a"
    assert settings.kubelet_directory == Path("/var/lib/kubelet/device-plugins")
    assert settings.root == Path("/var/lib/gpushare")
    assert settings.run_directory == Path("/run/gpushare/arbiter")
    assert settings.proc_root == Path("/proc")


def test_a_flag_wins_over_the_environment() -> None:
    assert agent_settings.parse(["--node-name=b"], {"NODE_NAME": "a"}).node_name == "b"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "the node name is missing: set --node-name"),
        (["--node-name=a", "--root=lib"], "invalid --root lib: must be an absolute path"),
        (
            ["--node-name=a", f"--run-directory=/{'x' * 100}"],
            "is too long: a socket's path has at most 107 bytes",
        ),
        (["--node-name=a", f"--kubelet-directory=/{'x' * 100}"], "gpushare-gpu-percent.sock is too long"),
        (
            ["--node-name=a", "--state-directory=/run/gpushare/arbiter/state"],
            "invalid --state-directory /run/gpushare/arbiter/state: must not be below --run-directory",
        ),
    ],
)
def test_invalid_settings_are_rejected(arguments: list[str], sentence: str) -> None:
    with pytest.raises(agent_settings.SettingsError) as refused:
        agent_settings.parse(arguments, {})
    assert sentence in str(refused.value)


def test_context_memory_and_ending_processes_can_be_set() -> None:
    parsed = agent_settings.parse(["--node-name=a"], {})
    assert (parsed.context_memory_bytes, parsed.end_unlimited) == (0, False)
    parsed = agent_settings.parse(["--node-name=a", "--context-memory=300Mi", "--end-unlimited"], {})
    assert (parsed.context_memory_bytes, parsed.end_unlimited) == (300 << 20, True)


def test_an_invalid_context_size_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        agent_settings.parse(["--node-name=a", "--context-memory=much"], {})
    assert 'argument --context-memory: "much" is not a quantity' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "socket"),
    [
        ([], "/var/lib/kubelet/pod-resources/kubelet.sock"),
        (
            ["--kubelet-directory=/var/lib/k0s/kubelet/device-plugins"],
            "/var/lib/k0s/kubelet/pod-resources/kubelet.sock",
        ),
        (["--kubelet-directory=/k/device-plugins", "--pod-resources-socket=/p/kubelet.sock"], "/p/kubelet.sock"),
    ],
)
def test_the_pod_resources_socket_follows_the_kubelet_directory(arguments: list[str], socket: str) -> None:
    assert agent_settings.parse(["--node-name=a", *arguments], {}).pod_resources_socket == Path(socket)


def test_driver_roots_and_the_own_pod_come_from_the_environment() -> None:
    bare = agent_settings.parse(["--node-name=a"], {})
    assert (bare.pod_uid, bare.driver_root, bare.container_driver_root) == ("", "/", Path("/driver-root"))
    environment = {"POD_UID": "u", "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver", "CONTAINER_DRIVER_ROOT": "/host"}
    settings = agent_settings.parse(["--node-name=a"], environment)
    assert (settings.pod_uid, settings.driver_root, settings.container_driver_root) == (
        "u",
        "/run/nvidia/driver",
        Path("/host"),
    )
