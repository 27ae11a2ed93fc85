"""Rules about the GPUs of a node: their owner, their users, how they get into containers, their driver."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from gpushare import contract, versions
from gpushare import node as objects
from gpushare.pod import is_some
from gpushare.preflight import software_rules
from gpushare.preflight.facts_of_cluster import ClusterFacts, InstallPlan, Json, Workload, at, entries, namespace
from gpushare.preflight.finding import Finding, RulePhase, Severity, counted, listed, names, rule, severity_for
from gpushare.preflight.health_rules import condition
from gpushare.preflight.node_rules import info, subjects

CDI_COMPONENT: Final = "cdi"  # in config/components, and the volume that it adds
_WITH_CDI = f"./install.sh --component {CDI_COMPONENT}"
_NVIDIA = "nvidia.com/"
_GPU = "nvidia.com/gpu"
_UNPRIVILEGED = "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED"
_KEPT_OFF = '{"spec":{"template":{"spec":{"nodeSelector":{"nvidia.com/gpu.deploy.device-plugin":"true"}}}}}'
_STRATEGY = re.compile(r"deviceListStrategy:\s*(\S.*)|--device-list-strategy[= ](\S+)")


@rule(
    "gpu-owner",
    "no other device plugin allocates the GPUs of gpushare's nodes",
    "two device plugins with the same GPU allocate it to two pods",
)
def _owner(facts: ClusterFacts) -> Iterator[Finding]:
    machines = [node for node in facts.gpu_nodes() if not _is_borrowed_from(node)]
    owned: set[str] = set()
    for plugin, workload in software_rules.workloads(facts, "DaemonSet", software_rules.DEVICE_PLUGINS):
        concerned = software_rules.on_nodes(workload, machines)
        owned |= {*concerned}
        if concerned:
            found = (
                f"{plugin.name} ({software_rules.workload_name(workload)}) allocates the GPUs of {counted(concerned)}"
            )
            remedy = "keep it off these nodes" + (
                ", or set devicePlugin.enabled=false in the GPU Operator" * ("Operator" in plugin.name)
            )
            if plugin.off_by:
                commands = [f"kubectl label node {names(concerned, 'NODE...')} --overwrite {plugin.off_by}"]
            else:
                where, name = names([namespace(workload)], "NAMESPACE"), names([objects.name(workload)], "NAME")
                commands = [
                    f"kubectl --namespace {where} patch daemonset {name} --type merge -p '{_KEPT_OFF}'",
                    "kubectl label node NODES_THAT_KEEP_IT nvidia.com/gpu.deploy.device-plugin=true",
                ]
            yield Finding(Severity.BLOCKING, found, tuple(f"node/{name}" for name in concerned), remedy, (*commands,))
    ours = {objects.name(gpunode) for gpunode in facts.known(contract.GPUNODE_KIND)}
    others = [
        machine
        for machine in machines
        if objects.name(machine) not in {*owned, *ours}
        and str(at(machine, "status", "allocatable", _GPU) or "0") != "0"
    ]
    if others:
        found = f"an unknown component advertises {_GPU} on {counted(others)}, perhaps a plugin in the node's image"
        remedy = "find it in the system or the node's image, and disable it"
        commands = [
            "kubectl get daemonsets --all-namespaces -o wide",
            "systemctl list-units | grep -i device-plugin # on the node",
        ]
        yield Finding(Severity.BLOCKING, found, subjects(others), remedy, (*commands,))


@rule(
    "gpus-in-use",
    "no pod uses a GPU of the future gpushare nodes",
    "gpushare would place shares on GPUs that are already in use",
    RulePhase.BEFORE,
)
def _in_use(facts: ClusterFacts) -> Iterator[Finding]:
    chosen = {objects.name(gpu_node) for gpu_node in facts.gpu_nodes() if not _is_borrowed_from(gpu_node)}
    holders: dict[str, list[str]] = {}
    for pod in facts.of("Pod"):
        where = str(at(pod, "spec", "nodeName") or "")
        running = at(pod, "status", "phase") not in {"Succeeded", "Failed"}
        if where in chosen and running and namespace(pod) != contract.SYSTEM_NAMESPACE and holds_gpu(pod):
            holders.setdefault(where, []).append(f"{namespace(pod)}/{objects.name(pod)}")
    if holders:
        pods = sorted(name for some in holders.values() for name in some)
        found = f"GPUs of {counted(holders)} are held by {counted(pods, 'pod')}: {listed(pods)}"
        remedy = "delete them before their node gets an agent: it cannot see which GPUs another device plugin allocated"
        command = f"kubectl drain {names(sorted(holders), 'NODE')} --ignore-daemonsets --delete-emptydir-data"
        yield Finding(Severity.WARNING, found, tuple(f"node/{name}" for name in sorted(holders)), remedy, (command,))


def _is_borrowed_from(node: Json) -> bool:
    """Whether another device plugin gives the node's GPUs, and gpushare borrows them."""
    return at(node, "metadata", "labels", contract.BORROW_LABEL) is not None


def holds_gpu(pod: Json) -> bool:
    """Whether a pod requests devices of nvidia.com; an amount of zero is none."""
    containers = (*entries(pod, "spec", "containers"), *entries(pod, "spec", "initContainers"))
    limits = (at(container, "resources", "limits") for container in containers)
    return any(
        str(name).startswith(_NVIDIA) and is_some(str(amount))
        for amounts in limits
        if isinstance(amounts, Mapping)
        for name, amount in amounts.items()
    )


def strategies(plan: InstallPlan) -> frozenset[str]:
    """Return how the device plugin passes devices: `envvar`, `volume-mounts`, `cdi-cri`, `cdi-annotations`."""
    lists = (container.get(key) or () for container in plan.agent.containers() for key in ("command", "args"))
    texts = [" ".join(str(word) for words in lists for word in words), *plan.configurations.values()]
    values = [plan.agent.environment().get("DEVICE_LIST_STRATEGY", "")]
    values += [match[1] or match[2] for text in texts for match in _STRATEGY.finditer(text)]
    return frozenset(word for text in values for word in re.findall(r"[a-z][a-z-]+", text)) or frozenset({"envvar"})


def operator_with_cdi(facts: ClusterFacts) -> bool:
    """Whether there is a GPU Operator that injects devices by CDI, and so ignores the environment variable."""
    for policy in facts.known("ClusterPolicy"):
        enabled = at(policy, "spec", "cdi", "enabled")
        if enabled is not None:
            return bool(enabled)
        operators = (item for item in facts.known("Deployment") if objects.name(item) == "gpu-operator")
        images = (image for operator in operators for image in Workload.from_manifest(operator).images())
        labelled = versions.parse_version(objects.labels(policy).get("app.kubernetes.io/version", ""))
        return (labelled or versions.parse_version(next(images, "").rpartition(":")[2])) >= versions.MIN_OPERATOR_CDI
    return False


@rule(
    "device-injection",
    "container runtimes accept the way in which gpushare passes devices",
    "a container whose runtime ignores the devices starts without a GPU",
)
def _injection(facts: ClusterFacts) -> Iterator[Finding]:
    chosen = list(facts.gpu_nodes())
    rest = []
    by_message: dict[tuple[bool, str], list[Json]] = {}
    for item in chosen:
        said = condition(facts, objects.name(item), contract.CONDITION_DEVICES_INJECTED)
        if said is None:
            rest.append(item)
        elif said.status != "True":
            by_message.setdefault((said.status == "False", said.message or said.reason), []).append(item)
    for (sure, message), concerned in by_message.items():
        severity = severity_for(concerned, chosen) if sure else Severity.UNKNOWN
        found = f"the agent reports: {message}"
        remedy = "use CDI, or make NVIDIA's runtime the default on these nodes"
        yield Finding(severity, found, subjects(concerned), remedy, (_WITH_CDI,))
    if rest:
        yield from _likely_injection(facts, rest)


def _likely_injection(facts: ClusterFacts, rest: list[Json]) -> Iterator[Finding]:
    wanted = str(facts.plan.agent.pod.get("runtimeClassName") or "")
    classes = {objects.name(runtime_class) for runtime_class in facts.of("RuntimeClass")}
    if wanted and wanted not in classes:
        sentence = f"the agent's pods use the RuntimeClass {wanted}, which does not exist"
        yield Finding(Severity.BLOCKING, sentence, (), "list the RuntimeClasses", ("kubectl get runtimeclasses",))
    if any(name.startswith("cdi") for name in strategies(facts.plan)):
        yield from _by_cdi(facts, rest)
    elif operator_with_cdi(facts):
        found = "the GPU Operator injects devices by CDI, and ignores the environment variable that gpushare uses"
        remedy = "install the component cdi, and set deviceListStrategy to cdi-cri (docs/configuration.md, flags)"
        yield Finding(Severity.BLOCKING, found, subjects(rest), remedy, (_WITH_CDI,))
    elif wanted:
        return
    else:
        there = "the RuntimeClass nvidia exists" if "nvidia" in classes else "there is no RuntimeClass nvidia"
        found = f"{there}; the API server does not show whether NVIDIA's runtime is the default on {counted(rest)}"
        remedy = "check on a node; if it is not, make it the default, or use CDI"
        commands = (
            "grep -s default_runtime_name /etc/containerd/config.toml /etc/crio/crio.conf.d/* # on a node",
            "sudo nvidia-ctk runtime configure --set-as-default # on each node; or:",
            _WITH_CDI,
        )
        yield Finding(Severity.UNKNOWN, found, subjects(rest), remedy, commands)


def _by_cdi(facts: ClusterFacts, rest: list[Json]) -> Iterator[Finding]:
    if facts.plan.is_known and not facts.plan.agent.host_path(CDI_COMPONENT):
        found = "a configuration uses CDI, but the agent does not mount the directory for CDI specifications"
        yield Finding(Severity.BLOCKING, found, (), "install the component cdi", (_WITH_CDI,))
    runtimes = {objects.name(item): versions.parse_runtime(info(item, "containerRuntimeVersion")) for item in rest}
    old = [
        item
        for item in rest
        if runtimes[objects.name(item)][0] == "containerd"
        and runtimes[objects.name(item)][1] < versions.MIN_CONTAINERD_CDI
    ]
    if old:
        oldest = versions.format_version(versions.MIN_CONTAINERD_CDI)
        found = f"{counted(old)} with a containerd older than {oldest}, which ignores CDI"
        remedy = "update containerd, or use deviceListStrategy envvar there, with NVIDIA's runtime as the default"
        yield Finding(severity_for(old, rest), found, subjects(old), remedy)
    switched = [item for item in rest if runtimes[objects.name(item)][1][:2] == versions.MIN_CONTAINERD_CDI]
    if switched:
        found = f"{counted(switched)} with containerd 1.7, which supports CDI only if enable_cdi is set"
        command = "grep -n enable_cdi /etc/containerd/config.toml # on a node"
        yield Finding(Severity.UNKNOWN, found, subjects(switched), "check on a node", (command,))


@rule(
    "visible-devices",
    "no image can get GPUs by setting a variable",
    "NVIDIA_VISIBLE_DEVICES=all in an image gives a pod without a share every GPU of its node, without limits",
)
def _variable(facts: ClusterFacts) -> Iterator[Finding]:
    by_variable = "envvar" in strategies(facts.plan)
    policies = facts.of("ClusterPolicy")
    for policy in policies:
        env = {str(entry.get("name")): str(entry.get("value")) for entry in entries(policy, "spec", "toolkit", "env")}
        if env.get(_UNPRIVILEGED, "true").lower() != "false":
            found = "the GPU Operator's toolkit gives all GPUs to any image with NVIDIA_VISIBLE_DEVICES=all"
            remedy = (
                f"set {_UNPRIVILEGED}=false and ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS=true in toolkit.env, "
                "and deviceListStrategy to volume-mounts or cdi-cri"
            )
            command = f"kubectl edit clusterpolicies.nvidia.com {names([objects.name(policy)], 'NAME')}"
            yield Finding(Severity.WARNING, found, (f"clusterpolicy/{objects.name(policy)}",), remedy, (command,))
        elif by_variable:
            found = "the GPU Operator's toolkit accepts gpushare's NVIDIA_VISIBLE_DEVICES only from privileged pods"
            remedy = "set deviceListStrategy to volume-mounts or cdi-cri (docs/configuration.md, flags)"
            yield Finding(Severity.BLOCKING, found, (f"clusterpolicy/{objects.name(policy)}",), remedy)
    if not policies:
        found = "a file on each node, which is not in the API server, decides which pods may set NVIDIA_VISIBLE_DEVICES"
        remedy = "check on a node: true or unset gives any image all GPUs; false requires volume-mounts or cdi-cri"
        command = "grep accept-nvidia-visible /etc/nvidia-container-runtime/config.toml # on a node"
        yield Finding(Severity.INFO, found, (), remedy, (command,))


@rule(
    "driver",
    "the driver is 520 or newer",
    "the library supports CUDA 11.8 to 13.5; drivers from 615 on can enforce memory limits themselves",
)
def _driver(facts: ClusterFacts) -> Iterator[Finding]:
    chosen = list(facts.gpu_nodes())
    drivers = {
        objects.name(item): versions.parse_version(
            objects.labels(item).get("nvidia.com/cuda.driver-version.full", "")
            or objects.labels(item).get("nvidia.com/cuda.driver.major", "")
        )
        for item in chosen
    }
    silent = [item for item in chosen if not drivers[objects.name(item)]]
    if silent:
        found = f"{counted(silent)} without a label for the driver's version"
        remedy = "the agent labels its node once it runs there; until then, check on the node"
        command = "nvidia-smi --query-gpu=driver_version --format=csv # on a node"
        yield Finding(Severity.UNKNOWN, found, subjects(silent), remedy, (command,))
    old = [item for item in chosen if drivers[objects.name(item)] and drivers[objects.name(item)] < versions.MIN_DRIVER]
    if old:
        found = (
            f"{counted(old)} with a driver older than {versions.format_version(versions.MIN_DRIVER)} "
            f"({listed(sorted({versions.format_version(drivers[objects.name(item)]) for item in old}))})"
        )
        remedy = f"update the driver to {versions.format_version(versions.MIN_DRIVER)} (CUDA 11.8) or newer"
        yield Finding(severity_for(old, chosen), found, subjects(old), remedy)
    able = [
        item
        for item in chosen
        if drivers[objects.name(item)] >= versions.MIN_DRIVER_MEMORY_LIMITS
        and versions.parse_version(info(item, "kernelVersion")) >= versions.MIN_KERNEL_DMEM
    ]
    if able:
        found = f"{counted(able)} whose driver and kernel can enforce device memory limits, if cgroup v2 is in use"
        remedy = "add the component driver-memory; memoryEnforcement in the GPUNode says whether it works"
        yield Finding(Severity.INFO, found, subjects(able), remedy)


RULES: Final = (_owner, _in_use, _injection, _variable, _driver)
