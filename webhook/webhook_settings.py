"""Settings: flags and environment → one frozen value, validated once, before anything is opened."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib import parse as urls

import gpushare
from gpushare import contract, errors, policies, quantity
from gpushare.daemon import lifecycle
from gpushare.request import DEFAULT_ISOLATIONS
from webhook.controllers.demand.gang_demand import ATOMIC

ENVIRONMENT_PREFIX: Final = "GPUSHARE_WEBHOOK_"
SERVICE: Final = "gpushare-webhook"
# Whole numbers: what each is, the smallest and largest value, and their unit.
_NUMBERS: Final = {
    "reservation_seconds": ("a duration", 1, 3600, " seconds"),
    "patience_seconds": ("a duration", 1, 7 * 86400, " seconds"),
    **dict.fromkeys(("stuck_seconds", "rotation_seconds", "borrow_idle_seconds"), ("a duration", 1, 86400, " seconds")),
    **dict.fromkeys(("port", "probe_port"), ("a port", 0, 65535, "")),
    **dict.fromkeys(("demand_max_gpus", "borrow_max_gpus"), ("a number of GPUs", 1, 1024, "")),
}
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_CLASS: Final = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_ONLY_CHECKS: Final = "check-capacity.autoscaling.x-k8s.io"
_RESOURCES: Final = (contract.RESOURCE_PERCENT, "nvidia.com/gpu")  # the quota of the component bounds both
_PRODUCTS: Final = "demand_products"
_SWITCHES: Final = frozenset({"placer", "preemption"})
_PATHS: Final = frozenset(
    {"from_file", "state", "port_file", "certificate_directory", "certificate_files", "client_ca_file"}
)


@dataclasses.dataclass(frozen=True, slots=True)
class WebhookSettings:
    """The settings of one webhook process; the help of the flags describes each. The system chooses ports of 0."""

    kubeconfig: str | None = None
    from_file: Path | None = None
    state: Path | None = None
    host: str = "0.0.0.0"  # noqa: S104 - the API server comes from outside the pod
    port: int = 8443
    port_file: Path | None = None
    probe_host: str = "0.0.0.0"  # noqa: S104 - and so does the kubelet
    probe_port: int = 8081
    url: str | None = None
    service: str = SERVICE
    namespace: str = contract.SYSTEM_NAMESPACE
    instance: str = "gpushare-webhook"
    policy: str = policies.DEFAULT
    default_isolation: str = DEFAULT_ISOLATIONS[0]
    reservation_seconds: int = 60  # as long as the API server may take to store an admitted pod
    patience_seconds: int = 300  # how long a pod that needs more room may be overtaken
    stuck_seconds: int = 60  # how long the scheduler may try to bind a placed pod
    rotation_seconds: int = 900  # between rotation steps, until all replicas and API servers follow
    certificate_directory: Path = Path("/tmp/gpushare-webhook")  # noqa: S108 - an emptyDir in the manifests
    certificate_files: Path | None = None
    client_ca_file: Path | None = None
    placer: bool = True
    preemption: bool = False  # whether pods of lower priority are evicted for a pod that fits nowhere
    demand_resource: str = ""  # what demand pods ask for; empty: there are none
    demand_max_gpus: int = 16
    demand_products: tuple[tuple[str, int], ...] = ()  # GPUs that new nodes could have, with their memory in bytes
    demand_provisioning_class: str = ""  # of a gang's ProvisioningRequest; empty: gangs have demand pods, too
    borrow_max_gpus: int = 0  # of other device plugins, at a time; 0: none
    borrow_idle_seconds: int = 60  # how long a borrowed GPU without shares is kept
    log_level: str = "info"

    @property
    def names(self) -> tuple[str, ...]:
        """The DNS names or addresses under which the API server reaches us."""
        if self.url is not None:
            return (str(urls.urlsplit(self.url).hostname),)
        if self.from_file is not None:
            return ("localhost", "127.0.0.1")
        return (f"{self.service}.{self.namespace}.svc", f"{self.service}.{self.namespace}.svc.cluster.local")


class UsageError(ValueError):
    """A flag is invalid; the message says which and why."""


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> WebhookSettings:
    """Parse flags, or else the environment. Raises UsageError; exits for --help and --version."""
    parser = _parser()
    try:
        namespace, unknown = parser.parse_known_args(arguments)  # parse_args would exit by itself
    except argparse.ArgumentError as error:
        raise UsageError(str(error)) from error
    if unknown:
        raise UsageError(f"{' '.join(unknown)} is unknown: see --help for the flags")
    flags = vars(namespace)
    if flags.pop("version"):
        parser.exit(message=f"gpushare {gpushare.__version__}\n")
    values: dict[str, Any] = {}
    for field in dataclasses.fields(WebhookSettings):
        text = flags.get(field.name)
        if text is None:
            text = environment.get(ENVIRONMENT_PREFIX + field.name.upper())
        if text is not None:
            values[field.name] = text if isinstance(text, bool) else _typed(field.name, text)
    return _checked(WebhookSettings(**values), probe_port_given="probe_port" in values)


def _typed(name: str, text: str) -> object:
    flag = "--from" if name == "from_file" else f"--{name.replace('_', '-')}"
    if name in _NUMBERS:
        what, least, most, unit = _NUMBERS[name]
        if not text.isdecimal() or not least <= int(text) <= most:
            raise UsageError(f'{flag} "{text}" is not {what}: write {least} to {most}{unit}')
        return int(text)
    if name == _PRODUCTS:
        return tuple(_product(entry.strip()) for entry in text.split(",") if entry.strip())
    if name in _SWITCHES:
        if text not in {"true", "false"}:
            raise UsageError(f'{ENVIRONMENT_PREFIX}{name.upper()} "{text}" is neither "true" nor "false"')
        return text == "true"
    return Path(text) if name in _PATHS else text


def _product(entry: str) -> tuple[str, int]:
    product, _, size = entry.partition("=")
    try:
        memory_bytes = quantity.parse_bytes(size)
    except errors.QuantityError:
        memory_bytes = 0
    if not _LABEL_VALUE.fullmatch(product) or memory_bytes <= 0:
        sentence = "write the node label nvidia.com/gpu.product and the memory, such as NVIDIA-L4=24Gi"
        raise UsageError(f'--demand-products "{entry}" names no GPU: {sentence}')
    return product, memory_bytes


def _checked(settings: WebhookSettings, *, probe_port_given: bool) -> WebhookSettings:
    for flag, word, known, wrong in (
        ("--policy", settings.policy, policies.POLICIES, "is unknown"),
        ("--log-level", settings.log_level, lifecycle.LOG_LEVELS, "is unknown"),
        ("--default-isolation", settings.default_isolation, DEFAULT_ISOLATIONS, "cannot be the default"),
    ):
        if word not in known:
            raise UsageError(f'{flag} "{word}" {wrong}: write one of {", ".join(known)}')
    if settings.demand_resource and settings.demand_resource not in _RESOURCES:
        either = " or ".join(_RESOURCES)
        raise UsageError(f'--demand-resource "{settings.demand_resource}" is unknown: write {either}')
    if settings.demand_resource and settings.from_file is not None:
        raise UsageError("--demand-resource cannot be combined with --from: a cluster in memory has no autoscaler")
    if settings.demand_provisioning_class:
        _check_class(settings)
    if settings.borrow_max_gpus and settings.from_file is not None:
        raise UsageError("--borrow-max-gpus cannot be combined with --from: a cluster in memory has no device plugin")
    if settings.preemption and settings.from_file is not None:
        raise UsageError("--preemption cannot be combined with --from: a cluster in memory has no owners of pods")
    if settings.url is not None:
        address, path = urls.urlsplit(settings.url), contract.WEBHOOK_PATH
        if address.scheme != "https" or not address.hostname or address.path != path:
            raise UsageError(f'--url "{settings.url}" is not an address of this webhook: write https://HOST:PORT{path}')
    if settings.state is not None and settings.from_file is None:
        sentence = "--state requires --from, because it is for a cluster in memory: add --from, or remove --state"
        raise UsageError(sentence)
    if settings.certificate_files is not None and (settings.url is not None or settings.from_file is not None):
        raise UsageError(
            f"--certificate-files {settings.certificate_files} cannot be combined with --url or --from: the "
            "issuer of the certificates also makes the API server trust them"
        )
    if settings.client_ca_file is not None and not settings.client_ca_file.is_file():
        raise UsageError(
            f"--client-ca-file {settings.client_ca_file} is not a file: write a PEM file with the authority of "
            "the API servers' client certificates"
        )
    if settings.from_file is not None:
        if settings.kubeconfig is not None or settings.url is not None:
            raise UsageError("--from is a cluster in memory: it cannot be combined with --kubeconfig or --url")
        if not probe_port_given:
            return dataclasses.replace(settings, probe_port=0)
    return settings


def _check_class(settings: WebhookSettings) -> None:
    name = settings.demand_provisioning_class
    remedy = f"write the class of a ProvisioningRequest, such as {ATOMIC}"
    if not settings.demand_resource:
        raise UsageError("--demand-provisioning-class asks for nothing without --demand-resource: add that flag")
    if not _CLASS.fullmatch(name):
        raise UsageError(f'--demand-provisioning-class "{name}" is not a name: {remedy}')
    if name == _ONLY_CHECKS:
        raise UsageError(f'--demand-provisioning-class "{name}" starts no nodes: {remedy}')


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m webhook",
        description="The admission webhook of gpushare, and its placer.",
        epilog=f"Each flag can be set in the environment too: {ENVIRONMENT_PREFIX}PORT for --port.",
        exit_on_error=False,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--kubeconfig", help="how to reach the cluster; by default the pod's ServiceAccount, then $KUBECONFIG")
    instead = "use the GPUNodes of this YAML or JSON file instead of a cluster"
    add("--from", dest="from_file", metavar="FILE", help=instead)
    add("--state", metavar="FILE", help="with --from: write GPUNodes and admitted pods here after each review")
    add("--host", help="address to serve reviews on (default: all)")
    add("--port", help="port to serve reviews on, 0 for any (default: 8443)")
    add("--port-file", metavar="FILE", help="write the port to this file once it is open")
    add("--probe-host", help="address for /healthz, /readyz and /metrics (default: all)")
    add("--probe-port", help="port for /healthz, /readyz and /metrics, 0 for any (default: 8081; with --from: 0)")
    add("--url", help=f"register this address, https://HOST:PORT{contract.WEBHOOK_PATH}, instead of the Service")
    add("--service", help=f"the Service of this webhook (default: {SERVICE})")
    system = f"the namespace of the Lease and of the certificates (default: {contract.SYSTEM_NAMESPACE})"
    add("--namespace", help=system)
    add("--instance", help="the name of this replica, in the Lease and in Events (default: the pod's name)")
    add("--policy", help=f"placement policy for pods that name none: {', '.join(policies.POLICIES)}")
    named = f"isolation of pods that name none: {', '.join(DEFAULT_ISOLATIONS)} (default: {DEFAULT_ISOLATIONS[0]})"
    add("--default-isolation", help=named)
    stored = "how long a share waits for its pod to be stored; at least the API server's --request-timeout"
    add("--reservation-seconds", help=f"{stored} (default: 60)")
    add("--patience-seconds", help="how long a pod that needs more room may be overtaken (default: 300)")
    add("--stuck-seconds", help="how long the scheduler may try to bind a placed pod (default: 60)")
    add("--rotation-seconds", help="pause between two steps of a certificate rotation (default: 900)")
    add("--certificate-directory", metavar="DIRECTORY", help="directory to store certificates as files in")
    mounted = "serve tls.crt and tls.key of this directory, such as a mounted Secret, and issue and register none"
    add("--certificate-files", metavar="DIRECTORY", help=mounted)
    only = "accept only clients with a certificate of an authority in this file; by default all"
    add("--client-ca-file", metavar="FILE", help=only)
    add("--placer", action=argparse.BooleanOptionalAction, default=None, help="take part in the election of the placer")
    evict = "evict pods of lower priority, whose owner recreates them, for a pod that fits nowhere (default: off)"
    add("--preemption", action=argparse.BooleanOptionalAction, default=None, help=evict)
    demand = f"ask an autoscaler for nodes by pods that request this resource, {' or '.join(_RESOURCES)}"
    add("--demand-resource", metavar="RESOURCE", help=f"{demand} (default: none)")
    add("--demand-max-gpus", metavar="GPUS", help="maximum number of GPUs requested at a time (default: 16)")
    named = "GPUs of the nodes that it can start, by product label and memory, such as NVIDIA-L4=24Gi, comma-separated"
    add("--demand-products", metavar="PRODUCTS", help=f"{named}; needed while no such node exists")
    together = "ask for the nodes of a gang together, by a ProvisioningRequest of this class, such as"
    add("--demand-provisioning-class", metavar="CLASS", help=f"{together} {ATOMIC} (default: by demand pods)")
    borrowed = f"borrow at most this many GPUs of other device plugins, on nodes with the label {contract.BORROW_LABEL}"
    add("--borrow-max-gpus", metavar="GPUS", help=f"{borrowed} (default: none)")
    add("--borrow-idle-seconds", help="how long a borrowed GPU without shares is kept (default: 60)")
    add("--log-level", help=f"one of {', '.join(lifecycle.LOG_LEVELS)} (default: info)")
    add("--version", action="store_true", help="print the version and exit")
    return parser
