"""What the agent is told at its start: flags, or environment for those that a manifest fills in. Checked once."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from deviceplugin import advertisement
from gpushare import contract
from gpushare.daemon import logs

# A socket's path has room for this many bytes and a NUL.
LONGEST_SOCKET_PATH: Final = 107


class SettingsError(Exception):
    """A setting that cannot be; the message names it and says what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Where things are. All paths are as on the host: the kubelet mounts them into containers from there."""

    node_name: str
    kubeconfig: str | None
    kubelet_directory: Path
    root: Path
    run_directory: Path
    state_directory: Path
    library: Path
    proc_root: Path
    probe_host: str
    probe_port: int
    log_level: str


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Settings from the command line. Raises SettingsError; ends the process for --help and unknown flags."""
    found = _parser(environment).parse_args(arguments)
    if not found.node_name:
        raise SettingsError("the name of the node is not known: give --node-name, or NODE_NAME by the downward API")
    if found.state_directory is None:
        found.state_directory = found.run_directory.parent / "state"
    settings = Settings(**vars(found))
    for directory in ("kubelet_directory", "root", "run_directory", "state_directory", "proc_root"):
        path: Path = getattr(settings, directory)
        if not path.is_absolute():
            raise SettingsError(f"--{directory.replace('_', '-')} {path} is no absolute path, as the kubelet needs it")
    for socket in (
        settings.run_directory / contract.ARBITER_SOCKET_NAME,
        *(settings.kubelet_directory / resource.socket_name for resource in advertisement.RESOURCES),
    ):
        if len(str(socket).encode()) > LONGEST_SOCKET_PATH:
            raise SettingsError(
                f"{socket} is longer than the {LONGEST_SOCKET_PATH} bytes that a socket's path can have"
            )
    if settings.state_directory.is_relative_to(settings.run_directory):
        raise SettingsError(
            f"--state-directory {settings.state_directory} is below --run-directory, which containers can read: "
            "give one beside it"
        )
    return settings


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deviceplugin",
        description="The node agent of gpushare: device plugin of the kubelet, and arbiter of who may use how much.",
    )
    add = parser.add_argument
    add("--node-name", default=environment.get("NODE_NAME", ""), help="this node ($NODE_NAME)")
    add("--kubeconfig", default=None, help="how to reach the API server, when this does not run in a pod")
    add(
        "--kubelet-directory",
        type=Path,
        default=Path("/var/lib/kubelet/device-plugins"),
        help="where kubelet.sock is (%(default)s)",
    )
    add(
        "--root",
        type=Path,
        default=Path("/var/lib/gpushare"),
        help="where the library for containers is put (%(default)s)",
    )
    add(
        "--run-directory",
        type=Path,
        default=Path("/run/gpushare/arbiter"),
        help="where the arbiter's socket is; mounted into share containers (%(default)s)",
    )
    add(
        "--state-directory",
        type=Path,
        help="what the next agent must know; must outlive the agent's container (`state` beside --run-directory)",
    )
    add(
        "--library",
        type=Path,
        default=Path(contract.CONTAINER_LIBRARY),
        help="libgpushare.so to give to containers (%(default)s)",
    )
    add("--proc-root", type=Path, default=Path("/proc"), help="the host's /proc (%(default)s)")
    add("--probe-host", default="0.0.0.0", help="address of /healthz, /readyz and /metrics (%(default)s)")  # noqa: S104
    add("--probe-port", type=int, default=8081, help="port of /healthz, /readyz and /metrics (%(default)s)")
    add("--log-level", choices=logs.LEVELS, default="info", help="(%(default)s)")
    return parser
