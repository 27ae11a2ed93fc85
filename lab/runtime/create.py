"""Prepares a container for the simulated GPUs before runc creates it, as NVIDIA's container runtime does.

The requested devices come from NVIDIA_VISIBLE_DEVICES, from mounts that stand for devices, or from an annotation with
CDI device names. The program mounts the driver's libraries and the files of the requested GPUs; a MIG device is in its
GPU's file. It applies the environment of a CDI specification, and the mounts of the device itself. Device nodes and the
driver files that all devices have in common are not mounted, because the simulation has none. Every container start
waits for this program, so it imports little.

Usage: create.py DEVICES LIBRARIES CDI-DIRECTORY ARGUMENTS-OF-RUNC...
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time

TYPE_CHECKING = False  # as in typing, whose import would take longer than all the others
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

VARIABLE = "NVIDIA_VISIBLE_DEVICES"
LIBRARY_DIRECTORY = f"/usr/lib/{platform.machine()}-linux-gnu"
# By driver file: its directory in a container.
DRIVER = {
    "libcuda.so.1": LIBRARY_DIRECTORY,
    "libnvidia-ml.so.1": LIBRARY_DIRECTORY,
    "nvidia-cuda-mps-control": "/usr/bin",
}
DEVICE_DIRECTORY = "/dev/simgpu"
RENDEZVOUS = "rendezvous"  # by which kernels of different GPUs synchronise; mounted into every container with a GPU
CONTROL = "control"  # the driver's own device file, if it exists; added to every container with the driver
# A link to the host's cgroup v2, if it exists: the simulated driver's limits by cgroup need it in the container, and
# next to v1, runc mounts only that. A real driver is in the kernel.
CGROUPS = "cgroups"
IMAGE_BYTES = 1 << 20  # the GPU's state is in this first part of its file; the rest belongs to processes
VOLUME_MOUNTS = "/var/run/nvidia-container-devices"
CDI_ANNOTATIONS = "cdi.k8s.io/"
GPU_NODE = "/dev/nvidia"


class UnknownDeviceError(ValueError):
    """The container names a GPU that this node does not have."""


def requested(environment: list[str]) -> list[str] | None:
    """Return the devices that a container requests; None if it requests no driver at all.

    An empty value, `void` and no variable mean no driver; `none` means the driver without a GPU.
    """
    values = [entry.partition("=")[2] for entry in environment if entry.startswith(f"{VARIABLE}=")]
    value = values[-1].strip() if values else ""
    if value in {"", "void"}:
        return None
    return [] if value == "none" else [name.strip() for name in value.split(",") if name.strip()]


def mounted(mounts: list[Json]) -> list[str]:
    """Return the devices that are requested by mounts, which only the kubelet can add."""
    prefix = f"{VOLUME_MOUNTS}/"
    return [mount["destination"].removeprefix(prefix) for mount in mounts if mount["destination"].startswith(prefix)]


def described(annotations: dict[str, str], directory: str) -> tuple[list[str], list[str], list[Json]]:
    """Return the GPUs that CDI annotations name, and the environment and the mounts that their specifications add.

    Raises:
        UnknownDeviceError: no specification in `directory` has a name.
    """
    wanted = [name for key, text in annotations.items() if key.startswith(CDI_ANNOTATIONS) for name in text.split(",")]
    known: dict[str, tuple[Json, Json]] = {}
    for file in sorted(os.listdir(directory)) if wanted and os.path.isdir(directory) else ():  # noqa: PTH112, PTH208
        if file.endswith(".json"):
            with open(f"{directory}/{file}") as text:  # noqa: PTH123
                document = json.load(text)
            known |= {f"{document['kind']}={device['name']}": (document, device) for device in document["devices"]}
    missing = [name for name in wanted if name not in known]
    if missing:
        raise UnknownDeviceError(f"unresolvable CDI devices {', '.join(missing)}: no file in {directory} has them")
    edits = [part.get("containerEdits", {}) for name in wanted for part in known[name]]
    environment = [entry for edit in edits for entry in edit.get("env", ())]
    names: list[str] = []
    added: list[Json] = []
    for name in wanted:
        kind, _, device = name.partition("=")
        names += [device] if kind.endswith("/gpu") else numbers(known[name][1])
        added += known[name][1].get("containerEdits", {}).get("mounts", ())
    return names, environment, added


def numbers(device: Json) -> list[str]:
    """Return the GPU indices of a CDI device's nodes: `/dev/nvidia0` is GPU 0."""
    paths = [node["path"] for node in device.get("containerEdits", {}).get("deviceNodes", ())]
    return [path.removeprefix(GPU_NODE) for path in paths if path.removeprefix(GPU_NODE).isdigit()]


def parents(names: list[str], devices: str, files: list[str]) -> list[str]:
    """Replace the UUID of each MIG device by its GPU's UUID."""
    owners = []
    for name in names:
        owner = name
        for file in files if name.startswith("MIG-") else ():
            with open(f"{devices}/{file}", "rb") as image:  # noqa: PTH123
                if f"{name}\0".encode() in image.read(IMAGE_BYTES):
                    owner = file.partition("-")[2]
        owners.append(owner)
    return owners


def select(names: list[str], files: list[str]) -> list[str]:
    """Return the files, `gpuINDEX-UUID`, of the GPUs given as `all`, UUID or index.

    Raises:
        UnknownDeviceError: a name matches no GPU.
    """
    if names == ["all"]:
        return sorted(files)
    by_name = {}
    for file in files:
        index, _, uuid = file.removeprefix("gpu").partition("-")
        by_name[index] = by_name[uuid] = file
    for name in names:
        if name not in by_name:
            known = ", ".join(sorted(file.partition("-")[2] for file in files)) or "none"
            raise UnknownDeviceError(f"{VARIABLE} names {name}, which is not a GPU of this node (it has: {known})")
    return sorted({by_name[name] for name in names})


def mounts(devices: str, files: list[str], libraries: str) -> list[dict[str, object]]:
    """Return the mounts of the driver's libraries and these device files."""
    sources = {f"{libraries}/{name}": (f"{directory}/{name}", "ro") for name, directory in DRIVER.items()}
    access = {CGROUPS: "ro"}
    sources |= {f"{devices}/{file}": (f"{DEVICE_DIRECTORY}/{file}", access.get(file, "rw")) for file in files}
    return [
        {"source": source, "destination": destination, "type": "bind", "options": ["bind", "nosuid", "nodev", mode]}
        for source, (destination, mode) in sources.items()
    ]


def replace(there: list[Json], more: list[Json]) -> None:
    """Add the mounts of a CDI device. They take the place of others at the same path, such as `/dev/shm`."""
    paths = {mount["containerPath"] for mount in more}
    there[:] = [mount for mount in there if mount["destination"] not in paths]
    for mount in more:
        bind = {"source": mount["hostPath"], "destination": mount["containerPath"], "options": mount["options"]}
        there.append({"type": "bind", **bind})


def add_control(linux: Json, path: str) -> None:
    """Add the driver's device file to a container and allow access to it, as with `/dev/nvidiactl`."""
    number = os.stat(path).st_rdev  # noqa: PTH116
    device = {"type": "c", "major": os.major(number), "minor": os.minor(number)}
    linux.setdefault("devices", []).append({**device, "path": f"{DEVICE_DIRECTORY}/{CONTROL}", "fileMode": 0o666})
    linux.setdefault("resources", {}).setdefault("devices", []).append({**device, "allow": True, "access": "rw"})


def edit(bundle: str, devices: str, libraries: str, cdi: str) -> None:
    """Add the requested devices to a bundle's config.json; no-op if none are requested."""
    path = os.path.join(bundle, "config.json")  # noqa: PTH118 - pathlib would double the time this takes
    with open(path) as file:  # noqa: PTH123
        configuration = json.load(file)
    environment = configuration.get("process", {}).get("env") or []
    names = requested(environment)
    if names == [VOLUME_MOUNTS]:
        names = mounted(configuration.get("mounts") or [])
    by_name, added, more = described(configuration.get("annotations") or {}, cdi)
    environment += added
    replace(configuration.setdefault("mounts", []), more)
    if by_name:
        names = by_name
    if names is None:
        return
    for name in DRIVER:
        if not os.path.exists(f"{libraries}/{name}"):  # noqa: PTH110
            raise FileNotFoundError(f"{libraries}/{name} is not there; build the simulated driver by: make build")
    files = [file for file in os.listdir(devices) if file.startswith("gpu")]  # noqa: PTH208
    selected = select(parents(names, devices, files), files)
    shared = [RENDEZVOUS] if selected and os.path.exists(f"{devices}/{RENDEZVOUS}") else []  # noqa: PTH110
    shared += [CGROUPS] if selected and os.path.exists(f"{devices}/{CGROUPS}") else []  # noqa: PTH110
    configuration.setdefault("mounts", []).extend(mounts(devices, selected + shared, libraries))
    if os.path.exists(f"{devices}/{CONTROL}"):  # noqa: PTH110
        add_control(configuration.setdefault("linux", {}), f"{devices}/{CONTROL}")
    with open(path, "w") as file:  # noqa: PTH123
        json.dump(configuration, file)


def option(arguments: list[str], name: str) -> str | None:
    """Return the value of an option of runc, given as `--name VALUE` or `--name=VALUE`."""
    for position, argument in enumerate(arguments):
        if argument == f"--{name}" and position + 1 < len(arguments):
            return arguments[position + 1]
        if argument.startswith(f"--{name}="):
            return argument.partition("=")[2]
    return None


def fail(message: str, log: str | None) -> None:
    """Write the reason to runc's log, whose last error containerd reports."""
    print(message, file=sys.stderr)
    if log:
        entry = {"level": "error", "msg": message, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        with open(log, "a") as file:  # noqa: PTH123
            file.write(json.dumps(entry) + "\n")


def main(arguments: list[str]) -> int:
    """Edit the bundle that runc is about to create; return the exit status."""
    devices, libraries, cdi, *runc = arguments
    try:
        edit(option(runc, "bundle") or option(runc, "b") or os.getcwd(), devices, libraries, cdi)  # noqa: PTH109
    except (OSError, ValueError) as error:
        fail(f"nvidia-container-runtime (simulated): {error}", option(runc, "log"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
