"""What the agent is told at its start: flags, or environment for those that a manifest fills in. Checked once.

The flags of NVIDIA's device plugin are taken too, with the environment variables that go with them: they count more
than what a configuration says. They are passed on as they are, see `gpushare.config.flags`.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from deviceplugin.modes import desired_config
from deviceplugin.state import advertisement
from gpushare import contract, errors, quantity
from gpushare.config import config_choice, flags
from gpushare.config import node_settings as configured
from gpushare.config.model import Config, FlagValue
from gpushare.daemon import logs

# A socket's path has room for this many bytes and a NUL.
MAX_SOCKET_PATH: Final = 107


class SettingsError(Exception):
    """A setting that cannot be; the message names it and says what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class AgentSettings:
    """Where things are. All paths are as on the host: the kubelet mounts them into containers from there."""

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
    bpf_root: Path
    cgroup_root: Path
    fail_on_init_error: bool
    pod_uid: str
    driver_root: str
    container_driver_root: Path
    options: desired_config.ModeOptions


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> AgentSettings:
    """Settings from the command line. Raises SettingsError; ends the process for --help and unknown flags."""
    parser = _parser(environment)
    parsed, rest = parser.parse_known_args(arguments)
    options, values = _options(parser, parsed, rest, environment)
    if not parsed.node_name:
        raise SettingsError("the name of the node is unknown: give --node-name, or NODE_NAME by the downward API")
    if parsed.state_directory is None:
        parsed.state_directory = parsed.run_directory.parent / "state"
    if parsed.pod_resources_socket is None:
        parsed.pod_resources_socket = parsed.kubelet_directory.parent / "pod-resources" / "kubelet.sock"
    mps_root = Path(str(values["mpsRoot"] or parsed.run_directory.parent / "mps"))
    fails = bool(values["failOnInitError"])
    settings = AgentSettings(
        **vars(parsed),
        mps_root=mps_root,
        fail_on_init_error=fails,
        driver_root=str(values["nvidiaDriverRoot"]),
        container_driver_root=Path(str(values["plugin.containerDriverRoot"])),
        options=options,
    )
    for name in (
        "kubelet_directory",
        "pod_resources_socket",
        "root",
        "run_directory",
        "state_directory",
        "mps_root",
        "proc_root",
    ):
        path: Path = getattr(settings, name)
        if not path.is_absolute():
            raise SettingsError(f"--{name.replace('_', '-')} {path} is not an absolute path, as the kubelet needs it")
    for socket in (
        settings.run_directory / contract.ARBITER_SOCKET_NAME,
        *(settings.kubelet_directory / advertisement.socket_name(name) for name in advertisement.COUNTERS),
    ):
        if len(str(socket).encode()) > MAX_SOCKET_PATH:
            raise SettingsError(f"{socket} is longer than the {MAX_SOCKET_PATH} bytes that a socket's path can have")
    if settings.state_directory.is_relative_to(settings.run_directory):
        raise SettingsError(
            f"--state-directory {settings.state_directory} is below --run-directory, which containers can read: "
            "give one beside it"
        )
    if settings.config_map.count("/") != 1:
        raise SettingsError(f"--config-map {settings.config_map} is not of the form NAMESPACE/NAME")
    return settings


def _options(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, rest: Sequence[str], environment: Mapping[str, str]
) -> tuple[desired_config.ModeOptions, Mapping[str, FlagValue]]:
    """What goes before a configuration, taken out of `arguments`, and all of `rest`; and NVIDIA's flags by key."""
    known = {option for flag in flags.FLAGS for option in flag.options}
    for word in rest:
        option = word.partition("=")[0]
        if option.startswith("-") and option not in known:
            parser.error(f"unrecognized arguments: {word}")
    relevant = {name for flag in flags.FLAGS for name in flag.variables}
    options = desired_config.ModeOptions(
        default=arguments.default_config,
        fallbacks=tuple(word for word in arguments.config_fallbacks.split(",") if word),
        arguments=tuple(rest),
        environment={name: value for name, value in environment.items() if name in relevant},
        strict=arguments.strict_compatibility,
    )
    for name in ("default_config", "config_fallbacks", "strict_compatibility"):
        delattr(arguments, name)
    try:
        values = configured.values_of(Config(), arguments=rest, environment=options.environment)
        configured.effective(Config(), arguments=rest, environment=options.environment)
    except errors.ConfigError as error:
        raise SettingsError(str(error)) from error
    if values["configFile"]:
        raise SettingsError(
            f"--config-file {values['configFile']} is not read, as a mounted file says neither that it changed nor for "
            "which node it is: put it as an entry into the ConfigMap that --config-map names"
        )
    return options, values


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deviceplugin",
        description="The node agent of gpushare: device plugin of the kubelet, and arbiter of who may use how much.",
        epilog="The flags of NVIDIA's device plugin (--mig-strategy, --device-list-strategy, ...) count here too.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--node-name", default=environment.get("NODE_NAME", ""), help="this node ($NODE_NAME)")
    add(
        "--pod-uid",
        default=environment.get("POD_UID", ""),
        help="the UID of this pod, by whose RuntimeClass the agent knows how its node gives devices ($POD_UID)",
    )
    add("--kubeconfig", default=None, help="how to reach the API server, when this does not run in a pod")
    add(
        "--kubelet-directory",
        type=Path,
        default=Path("/var/lib/kubelet/device-plugins"),
        help="where kubelet.sock is (%(default)s)",
    )
    add(
        "--pod-resources-socket",
        type=Path,
        help="where the kubelet tells which pod holds which device (pod-resources/kubelet.sock beside its directory)",
    )
    add(
        "--root",
        type=Path,
        default=Path("/var/lib/gpushare"),
        help="where the library for containers is put, and what is in force on the GPUs is kept (%(default)s)",
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
        "--cdi-directory",
        type=Path,
        default=Path("/var/run/cdi"),
        help="where the devices are described for container runtimes (%(default)s)",
    )
    add(
        "--library",
        type=Path,
        default=Path(contract.CONTAINER_LIBRARY),
        help="libgpushare.so to give to containers (%(default)s)",
    )
    add(
        "--mps-program",
        type=Path,
        default=Path("/usr/bin/nvidia-cuda-mps-control"),
        help="NVIDIA's MPS control daemon (%(default)s)",
    )
    add("--proc-root", type=Path, default=Path("/proc"), help="the host's /proc (%(default)s)")
    add(
        "--config-map",
        default=f"{contract.SYSTEM_NAMESPACE}/{contract.CONFIG_MAP}",
        metavar="NAMESPACE/NAME",
        help="the configurations of which the node's label picks one (%(default)s)",
    )
    add("--default-config", default="", metavar="NAME", help="the configuration of a node without a label")
    add(
        "--config-fallbacks",
        default=",".join(config_choice.FALLBACKS),
        metavar="WORDS",
        help="what to take without label and default: named, single, empty (%(default)s)",
    )
    add(
        "--strict-compatibility",
        action="store_true",
        help="act on a configuration as NVIDIA's plugin does: no rename, devices or resources, one mode a node",
    )
    add(
        "--context-memory",
        type=_bytes,
        default=0,
        metavar="QUANTITY",
        dest="context_memory_bytes",
        help="what a CUDA context is taken to need of a GPU until that was measured, as 300Mi (0)",
    )
    add(
        "--end-unlimited",
        action="store_true",
        help="kill processes of share containers that got around their limits; without it they are only told of",
    )
    add(
        "--deny-unregistered",
        action="store_true",
        help="keep processes of share containers that are not registered with the arbiter from the GPUs' device files",
    )
    add("--bpf-root", type=Path, default=Path("/sys/fs/bpf"), help="the host's bpf file system (%(default)s)")
    add("--cgroup-root", type=Path, default=Path("/sys/fs/cgroup"), help="the host's cgroup v2 (%(default)s)")
    add("--probe-host", default="0.0.0.0", help="address of /healthz, /readyz and /metrics (%(default)s)")  # noqa: S104
    add("--probe-port", type=int, default=8081, help="port of /healthz, /readyz and /metrics (%(default)s)")
    add("--log-level", choices=logs.LEVELS, default="info", help="(%(default)s)")
    return parser


def _bytes(text: str) -> int:
    try:
        return quantity.parse_bytes(text)
    except errors.QuantityError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
