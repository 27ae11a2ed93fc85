"""MPS: the number of clients, the limits, and how a daemon is started and stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deviceplugin.mps import steps
from gpushare.modes import hardware_gpu
from tests.conformance.runner import Case, Facets

ROOT = Path("/mps")


def mps_client_limit(case: Case) -> Any:
    major, _, minor = case.input["compute"].removeprefix("v").partition(".")
    capability = int(major), int(minor or 0)
    try:
        steps.check_replicas(case.input["replicas"], capability, as_nvidia=True)
        fine = True
    except steps.LimitError:
        fine = False
    return Facets(
        new_arch=hardware_gpu.has_new_mps(capability, as_nvidia=True),
        max_clients=hardware_gpu.max_mps_clients(capability, as_nvidia=True),
        replicas_ok=fine,
    )


def mps_limits(case: Case) -> Any:
    replicas = case.input["replicas"]
    gpus = {
        f"GPU-{index}": {"index": index, "memory": memory} for index, memory in case.input["gpu_memory_bytes"].items()
    }
    words = [line.split() for line in steps.limit_commands(_spec("nvidia.com/gpu", gpus, replicas))]
    return {
        "pinned_mem_limit": {rest[0]: rest[1] for name, *rest in words if name.endswith("pinned_mem_limit")},
        "active_thread_percentage": next(rest[0] for name, *rest in words if name.endswith("thread_percentage")),
    }


def mps_daemon_start(case: Case) -> Any:
    wanted = case.input
    if wanted.get("strategy", "mps") != "mps":
        done = _started()
        ready = any(isinstance(step, steps.Touch) and step.path == ROOT / steps.READY for step in done)
        return Facets(daemons=sum(isinstance(step, steps.RunDaemon) for step in done), ready_file=ready)
    spec = _spec(wanted["resource"], wanted.get("gpus", {}), wanted.get("replicas", 1))
    if wanted.get("action") == "stop":
        return Facets(ordered=[_shown(step) for step in _stopped(spec)])
    done = _started(spec)
    return Facets(
        ordered=[*map(_shown, done[:-1]), f"{_shown(done[-1])} (after all daemons)"],
        control_commands=[line for step in done if isinstance(step, steps.Command) for line in step.lines],
        env=next(dict(step.environment) for step in done if isinstance(step, steps.RunDaemon)),
    )


def _started(*specs: steps.Spec) -> list[steps.Step]:
    """Do what `Daemons` does: each daemon's steps, then the file that reports that all run."""
    done = list[steps.Step]()
    for spec in specs:
        files = steps.DaemonFiles(ROOT, spec.name)
        for step in steps.start(spec, files):
            if step == steps.MakeDirectory(files.log):
                done.append(steps.MakeDirectory(files.pipe))  # RunDaemon makes a new one for each daemon
            done.append(step)
    return [*done, steps.Touch(steps.DaemonFiles(ROOT, "").ready)]


def _stopped(spec: steps.Spec) -> list[steps.Step]:
    return [
        steps.Remove(steps.DaemonFiles(ROOT, "").ready),
        *steps.stop(spec, steps.DaemonFiles(ROOT, spec.name)),
    ]


def _shown(step: steps.Step) -> str:
    match step:
        case steps.SetComputeMode(exclusive, uuids):
            where = f" on {' and '.join(uuids)}" if uuids else ""
            return f"set compute mode {'EXCLUSIVE_PROCESS' if exclusive else 'DEFAULT'}{where}"
        case steps.MakeDirectory(path):
            return f"create {path} mode {steps.DIRECTORY_MODE:04o}"
        case steps.RunDaemon(environment):
            return f"run nvidia-cuda-mps-control -d with {' and '.join(environment)} only"
        case steps.CutPartitions(uuid, count):
            return f"cut {uuid} into {count} SM partitions"
        case steps.Command(lines, stopping):
            return f"control command {lines[0]}" if stopping else "control commands"
        case steps.Touch(path):
            return f"touch {path}"
        case steps.Remove(path):
            return f"remove {path}"
        case steps.FollowLog(path, stop):
            return "stop tail" if stop else f"tail {path.parent.name}/{path.name}"


def _spec(resource: str, gpus: Any, replicas: Any) -> steps.Spec:
    """Describe one daemon for all GPUs of a resource, as NVIDIA's plugin runs it."""
    shared = (
        steps.MpsGpu(
            uuid,
            int(gpu["index"]),
            gpu["memory"],
            replicas if isinstance(replicas, int) else replicas[gpu["index"]],
        )
        for uuid, gpu in gpus.items()
    )
    return steps.Spec(resource, tuple(shared), alone=False)


OPERATIONS = {
    "mps_client_limit": mps_client_limit,
    "mps_daemon_start": mps_daemon_start,
    "mps_limits": mps_limits,
}
