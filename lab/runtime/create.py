"""What NVIDIA's container runtime does to a container before runc creates it, for the simulated GPUs.

It reads NVIDIA_VISIBLE_DEVICES from the container's configuration, and mounts the driver's libraries and the files of
the GPUs named there. A container's start waits for it, so it imports little.

Usage: create.py DEVICES LIBRARIES ARGUMENTS-OF-RUNC...
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time

VARIABLE = "NVIDIA_VISIBLE_DEVICES"
LIBRARY_NAMES = ("libcuda.so.1", "libnvidia-ml.so.1")
LIBRARY_DIRECTORY = f"/usr/lib/{platform.machine()}-linux-gnu"
DEVICE_DIRECTORY = "/dev/simgpu"


class UnknownDeviceError(ValueError):
    """The container names a GPU that this node does not have."""


def requested(environment: list[str]) -> list[str] | None:
    """Return the devices a container asks for; None when it asks for no driver at all.

    An empty value, `void` and no variable mean no driver; `none` means the driver without a GPU.
    """
    values = [entry.partition("=")[2] for entry in environment if entry.startswith(f"{VARIABLE}=")]
    value = values[-1].strip() if values else ""
    if value in {"", "void"}:
        return None
    return [] if value == "none" else [name.strip() for name in value.split(",") if name.strip()]


def select(names: list[str], files: list[str]) -> list[str]:
    """Return the files, `gpuINDEX-UUID`, of the GPUs named by `all`, UUID or index.

    Raises:
        UnknownDeviceError: a name is no GPU's.
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
            raise UnknownDeviceError(f"{VARIABLE} names {name}, which is no GPU of this node (there are: {known})")
    return sorted({by_name[name] for name in names})


def mounts(devices: str, files: list[str], libraries: str) -> list[dict[str, object]]:
    """Return the mounts that bring the driver's libraries and the given device files into a container."""
    sources = {f"{libraries}/{name}": (f"{LIBRARY_DIRECTORY}/{name}", "ro") for name in LIBRARY_NAMES}
    sources |= {f"{devices}/{file}": (f"{DEVICE_DIRECTORY}/{file}", "rw") for file in files}
    return [
        {"source": source, "destination": destination, "type": "bind", "options": ["bind", "nosuid", "nodev", access]}
        for source, (destination, access) in sources.items()
    ]


def edit(bundle: str, devices: str, libraries: str) -> None:
    """Rewrite a bundle's config.json for what its process asks for; leave it alone when it asks for nothing."""
    path = os.path.join(bundle, "config.json")  # noqa: PTH118 - pathlib would double the time this takes
    with open(path) as file:  # noqa: PTH123
        configuration = json.load(file)
    names = requested(configuration.get("process", {}).get("env") or [])
    if names is None:
        return
    for name in LIBRARY_NAMES:
        if not os.path.exists(f"{libraries}/{name}"):  # noqa: PTH110
            raise FileNotFoundError(f"{libraries}/{name} is not there; build the simulated driver by: make build")
    files = [file for file in os.listdir(devices) if file.startswith("gpu")]  # noqa: PTH208
    configuration.setdefault("mounts", []).extend(mounts(devices, select(names, files), libraries))
    with open(path, "w") as file:  # noqa: PTH123
        json.dump(configuration, file)


def option(arguments: list[str], name: str) -> str | None:
    """Return the value of `--name VALUE` or `--name=VALUE` among runc's arguments."""
    for position, argument in enumerate(arguments):
        if argument == f"--{name}" and position + 1 < len(arguments):
            return arguments[position + 1]
        if argument.startswith(f"--{name}="):
            return argument.partition("=")[2]
    return None


def fail(message: str, log: str | None) -> None:
    """Say why the container is not created where containerd looks for it: the last error in runc's log."""
    print(message, file=sys.stderr)
    if log:
        entry = {"level": "error", "msg": message, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        with open(log, "a") as file:  # noqa: PTH123
            file.write(json.dumps(entry) + "\n")


def main(arguments: list[str]) -> int:
    """Edit the bundle that runc is about to create; return the exit status."""
    devices, libraries, *runc = arguments
    try:
        edit(option(runc, "bundle") or option(runc, "b") or os.getcwd(), devices, libraries)  # noqa: PTH109
    except (OSError, ValueError) as error:
        fail(f"nvidia-container-runtime (simulated): {error}", option(runc, "log"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
