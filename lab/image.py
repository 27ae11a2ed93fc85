"""Builds the lab's own images from files of this machine, because there is no registry to pull them from.

`gpushare/sample:0.1` has a shell, this machine's C library, so that ordinary dynamic programs run in it, and the probe
that allocates GPU memory. `gpushare/pause:0.1` holds a pod's namespaces.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from lab import kubelet, prerequisites

SAMPLE = "gpushare/sample:0.1"
PAUSE = "gpushare/pause:0.1"
PROBE = Path(__file__).resolve().parent.parent / "build" / "gpushare-probe"

LIBRARY_DIRECTORY = f"usr/lib/{platform.machine()}-linux-gnu"
LIBRARIES = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libresolv.so.2", "libgcc_s.so.1")
# This path is compiled into every dynamic program.
LOADERS = {"x86_64": "lib64/ld-linux-x86-64.so.2", "aarch64": "lib/ld-linux-aarch64.so.1"}
DIRECTORIES = ("usr", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "etc", "root", "run", "var")
MERGED = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
Entry = tuple[tarfile.TarInfo, bytes]  # a file of a layer: its header and content


@dataclass(frozen=True, slots=True)
class Image:
    """An image to build: its name, its command and its layers, each a tar archive."""

    name: str
    command: tuple[str, ...]
    layers: tuple[bytes, ...]


def write(archive: Path) -> None:
    """Write all images as one Docker archive, which `ctr images import` reads."""
    base, libraries = _base_layer(), _library_layer()
    layers = [base, libraries]
    if PROBE.exists():
        layers.append(_layer(_file("usr/bin/gpushare-probe", PROBE.read_bytes(), 0o755)))
    else:
        print(f"lab: {PROBE} is not built, so the image {SAMPLE} lacks it", file=sys.stderr)
    images = [Image(SAMPLE, ("sh",), tuple(layers)), Image(PAUSE, ("sleep", "infinity"), (base,))]
    scratch = archive.with_name(archive.name + ".new")
    with tarfile.open(scratch, "w") as tar:
        manifest = [_add(tar, image) for image in images]
        _add_bytes(tar, "manifest.json", json.dumps(manifest).encode())
    scratch.rename(archive)


def write_program(archive: Path, name: str, program: Path, path: str, *, dynamic: bool = False) -> None:
    """Write a Docker archive with an image of this name, which holds one program at `path`.

    dynamic: add what a dynamic program needs.
    """
    layers = (_base_layer(), _library_layer()) if dynamic else (_layer(_directory("tmp", 0o1777)),)
    own = _layer(_file(path.removeprefix("/"), program.read_bytes(), 0o755))
    with tarfile.open(archive, "w") as tar:
        _add_bytes(tar, "manifest.json", json.dumps([_add(tar, Image(name, (path,), (*layers, own)))]).encode())


def _add(tar: tarfile.TarFile, image: Image) -> dict[str, object]:
    """Add an image's layers and configuration to the archive; return its entry in the manifest."""
    names = []
    for layer in image.layers:
        name = f"{hashlib.sha256(layer).hexdigest()}.tar"
        if name not in tar.getnames():
            _add_bytes(tar, name, layer)
        names.append(name)
    configuration = json.dumps(
        {
            "architecture": kubelet.ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Env": [f"PATH={SEARCH_PATH}"], "Cmd": image.command, "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{name.removesuffix('.tar')}" for name in names]},
        }
    ).encode()
    config = f"{hashlib.sha256(configuration).hexdigest()}.json"
    _add_bytes(tar, config, configuration)
    return {"Config": config, "RepoTags": [image.name], "Layers": names}


def _base_layer() -> bytes:
    """Return the layer with busybox, a link for each of its commands, and the user database."""
    busybox = prerequisites.program("busybox")
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    return _layer(
        *(_directory(path) for path in DIRECTORIES),
        *(_link(path, target) for path, target in MERGED.items()),
        _directory("tmp", 0o1777),
        _file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n", 0o644),
        _file("etc/group", b"root:x:0:\nnogroup:x:65534:\n", 0o644),
        _file("usr/bin/busybox", Path(busybox).read_bytes(), 0o755),
        *(_link(f"usr/bin/{applet}", "busybox") for applet in applets if applet != "busybox"),
    )


def _library_layer() -> bytes:
    """Return the layer with this machine's dynamic loader and C libraries, at the paths that the loader searches."""
    entries = [_directory(LIBRARY_DIRECTORY)]
    for name in LIBRARIES:
        source = Path("/") / LIBRARY_DIRECTORY / name
        if source.exists():
            entries.append(_file(f"{LIBRARY_DIRECTORY}/{name}", source.read_bytes(), 0o755))
    loader = LOADERS[platform.machine()]
    entries.append(_file(f"usr/{loader}", (Path("/") / loader).read_bytes(), 0o755))
    return _layer(*entries)


def _layer(*entries: Entry) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _file(path: str, content: bytes, mode: int) -> Entry:
    info = tarfile.TarInfo(path)
    info.size, info.mode = len(content), mode
    return info, content


def _directory(path: str, mode: int = 0o755) -> Entry:
    info = tarfile.TarInfo(path)
    info.type, info.mode = tarfile.DIRTYPE, mode
    return info, b""


def _link(path: str, target: str) -> Entry:
    info = tarfile.TarInfo(path)
    info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
    return info, b""


def _add_bytes(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info, _ = _file(name, content, 0o644)
    tar.addfile(info, io.BytesIO(content))
