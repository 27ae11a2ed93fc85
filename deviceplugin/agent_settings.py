"""The agent's settings: command-line flags, and environment variables for those that the manifest sets. Checked once.

The agent also accepts NVIDIA's flags and their environment variables (`gpushare.config.flags`), which take precedence
over a configuration, and passes them on unchanged.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deviceplugin.state import advertisement
from gpushare import contract, errors, quantity
from gpushare.config import config_choice, flags
from gpushare.config import node_settings as configured
from gpushare.config.flags import FlagValue
from gpushare.config.model import Config
from gpushare.daemon import lifecycle

MAX_SOCKET_PATH: Final = 107  # bytes without the NUL, on Linux


class SettingsError(Exception):
    """A setting is invalid; the message names it and gives the remedy."""


@dataclasses.dataclass(frozen=True, slots=True)
class ModeOptions:
    """The settings that select and override the node's configuration.

    default: the entry for nodes without a label; fallbacks: as in `config_choice.select`.
    arguments, environment: where NVIDIA's flags may be; strict: whether to behave as NVIDIA's plugin does.
    """

    default: str = ""
    fallbacks: tuple[str, ...] = config_choice.FALLBACKS
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    strict: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class AgentSettings:
    """All settings. Paths are the host's, because the kubelet mounts them into containers from there."""

    node_name: str
    kubeconfig: str | None
    kubelet_directory: Path
    pod_resources_socket: Path
    root: Path
    run_directory: Path
    state_directory: Path
    cdi_directory: Path
    mps_program: Path
    mps_root: Path
    library: Path
    proc_root: Path
    config_map: str
    probe_host: str
    probe_port: int
    log_level: str
    context_memory_bytes: int
    end_unlimited: bool
    deny_unregistered: bool
    driver_memory: bool
    bpf_root: Path
    cgroup_root: Path
    fail_on_init_error: bool
    pod_uid: str
    driver_root: str
    container_driver_root: Path
    options: ModeOptions


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> AgentSettings:
    """Parse the command line. Raises SettingsError; exits for --help and for unknown flags."""
    parser = _parser(environment)
    parsed, rest = parser.parse_known_args(arguments)
    known = {option for flag in flags.FLAGS for option in flag.options}
    for word in rest:
        option = word.partition("=")[0]
        if option.startswith("-") and option not in known:
            parser.error(f"unrecognized arguments: {word}")
    given = vars(parsed)
    options, values = _options(given, rest, environment)
    if not parsed.node_name:
        raise SettingsError("the node name is missing: set --node-name, or NODE_NAME through the downward API")
    given["state_directory"] = parsed.state_directory or parsed.run_directory.parent / "state"
    kubelet_socket = parsed.kubelet_directory.parent / "pod-resources" / "kubelet.sock"
    given["pod_resources_socket"] = parsed.pod_resources_socket or kubelet_socket
    settings = AgentSettings(
        **given,
        mps_root=Path(str(values["mpsRoot"] or parsed.run_directory.parent / "mps")),
        fail_on_init_error=bool(values["failOnInitError"]),
        driver_root=str(values["nvidiaDriverRoot"]),
        container_driver_root=Path(str(values["plugin.containerDriverRoot"])),
        options=options,
    )
    absolute = ("kubelet_directory", "pod_resources_socket", "root", "run_directory", "state_directory")
    for name in (*absolute, "mps_root", "proc_root"):
        path: Path = getattr(settings, name)
        if not path.is_absolute():
            raise SettingsError(f"invalid --{name.replace('_', '-')} {path}: must be an absolute path")
    for socket in (
        settings.run_directory / contract.ARBITER_SOCKET_NAME,
        *(settings.kubelet_directory / advertisement.socket_name(name) for name in advertisement.COUNTERS),
    ):
        if len(str(socket).encode()) > MAX_SOCKET_PATH:
            raise SettingsError(f"{socket} is too long: a socket's path has at most {MAX_SOCKET_PATH} bytes")
    if settings.state_directory.is_relative_to(settings.run_directory):
        raise SettingsError(
            f"invalid --state-directory {settings.state_directory}: must not be below --run-directory, which "
            "containers can read"
        )
    if settings.config_map.count("/") != 1:
        raise SettingsError(f"invalid --config-map {settings.config_map}: must have the form NAMESPACE/NAME")
    return settings


def _options(
    given: dict[str, Any], rest: Sequence[str], environment: Mapping[str, str]
) -> tuple[ModeOptions, Mapping[str, FlagValue]]:
    """Take the mode options out of `given`; return them and NVIDIA's flags by key. Raises SettingsError."""
    relevant = {name for flag in flags.FLAGS for name in flag.variables}
    options = ModeOptions(
        default=given.pop("default_config"),
        fallbacks=tuple(filter(None, given.pop("config_fallbacks").split(","))),
        arguments=tuple(rest),
        environment={name: value for name, value in environment.items() if name in relevant},
        strict=given.pop("strict_compatibility"),
    )
    try:
        values = configured.values_of(Config(), arguments=rest, environment=options.environment)
        configured.effective(Config(), arguments=rest, environment=options.environment)
    except errors.ConfigError as error:
        raise SettingsError(str(error)) from error
    if values["configFile"]:
        raise SettingsError(
            f"--config-file {values['configFile']} is not supported: put it as an entry into the ConfigMap that "
            "--config-map names"
        )
    return options, values


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deviceplugin",
        description="The node agent of gpushare: the kubelet's device plugin, and the arbiter that enforces limits.",
        epilog="The flags of NVIDIA's device plugin (--mig-strategy, --device-list-strategy, ...) are accepted too.",
        allow_abbrev=False,
    )
    add = parser.add_argument

    def add_path(option: str, default: str | None, description: str) -> None:
        add(option, type=Path, default=default, help=description)

    add("--node-name", default=environment.get("NODE_NAME", ""), help="name of this node ($NODE_NAME)")
    add(
        "--pod-uid",
        default=environment.get("POD_UID", ""),
        help="UID of the agent's own pod; its RuntimeClass shows how this node injects devices ($POD_UID)",
    )
    add("--kubeconfig", help="kubeconfig file, if the agent does not run in a pod")
    add_path("--kubelet-directory", "/var/lib/kubelet/device-plugins", "directory of kubelet.sock (%(default)s)")
    add_path(
        "--pod-resources-socket",
        None,
        "the kubelet's pod-resources socket (pod-resources/kubelet.sock next to --kubelet-directory)",
    )
    add_path(
        "--root",
        "/var/lib/gpushare",
        "directory for the containers' library and for the record of the GPUs' modes (%(default)s)",
    )
    add_path(
        "--run-directory",
        "/run/gpushare/arbiter",
        "directory of the arbiter's socket; mounted into share containers (%(default)s)",
    )
    add_path(
        "--state-directory",
        None,
        "directory for state that must outlive the agent's container (`state` next to --run-directory)",
    )
    add_path("--cdi-directory", "/var/run/cdi", "directory for the CDI specs of the GPUs (%(default)s)")
    add_path("--library", contract.CONTAINER_LIBRARY, "the libgpushare.so that share containers get (%(default)s)")
    add_path("--mps-program", "/usr/bin/nvidia-cuda-mps-control", "NVIDIA's MPS control daemon (%(default)s)")
    add_path("--proc-root", "/proc", "the host's /proc (%(default)s)")
    add(
        "--config-map",
        default=f"{contract.SYSTEM_NAMESPACE}/{contract.CONFIG_MAP}",
        metavar="NAMESPACE/NAME",
        help="ConfigMap with the configurations; the node's label selects one (%(default)s)",
    )
    add("--default-config", default="", metavar="NAME", help="configuration of nodes without a label")
    add(
        "--config-fallbacks",
        default=",".join(config_choice.FALLBACKS),
        metavar="WORDS",
        help="configuration of a node without label and default: named, single, empty; the first that exists "
        "(%(default)s)",
    )
    add(
        "--strict-compatibility",
        action="store_true",
        help="treat configurations as NVIDIA's plugin does: no rename, devices or resources, and one mode per node",
    )
    add(
        "--context-memory",
        type=_bytes,
        default=0,
        metavar="QUANTITY",
        dest="context_memory_bytes",
        help="assumed size of a CUDA context until it has been measured, for example 300Mi (0)",
    )
    add(
        "--end-unlimited",
        action="store_true",
        help="kill processes in share containers that bypass their limits, instead of only reporting them",
    )
    add(
        "--deny-unregistered",
        action="store_true",
        help="deny the GPUs' device files to processes in share containers that are not registered with the arbiter",
    )
    add(
        "--driver-memory",
        action="store_true",
        help="have the driver keep the memory limits of share containers, on GPUs where it can",
    )
    add_path("--bpf-root", "/sys/fs/bpf", "the host's BPF file system (%(default)s)")
    add_path("--cgroup-root", "/sys/fs/cgroup", "the host's cgroup v2 (%(default)s)")
    add("--probe-host", default="0.0.0.0", help="address of /healthz, /readyz and /metrics (%(default)s)")  # noqa: S104
    add("--probe-port", type=int, default=8081, help="port of /healthz, /readyz and /metrics (%(default)s)")
    add("--log-level", choices=lifecycle.LOG_LEVELS, default="info", help="(%(default)s)")
    return parser


def _bytes(text: str) -> int:
    try:
        return quantity.parse_bytes(text)
    except errors.QuantityError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
