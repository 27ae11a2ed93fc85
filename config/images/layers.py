"""The layers of an image: system, wheels, gpushare. Each is cached under a hash of its inputs."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from config.images import bytecode, contents, packages, preloaded, requirements, wheels
from config.images.tree import Node, Tree, directory, link
from lab import build, lab_errors

ROOT = requirements.ROOT
BUILD = preloaded.BUILD


@dataclasses.dataclass(frozen=True, slots=True)
class ImageComponent:
    """A third-party part of a layer: `kind` is deb, pypi or generic. Wheels are unpacked, so they have no hash."""

    kind: str
    name: str
    version: str
    sha256: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """A layer in the cache."""

    directory: Path
    digest: str
    diff_id: str
    size: int
    unpacked_size: int
    components: tuple[ImageComponent, ...]

    @property
    def blob(self) -> Path:
        """The compressed archive, as the image contains it."""
        return self.directory / "layer.tar.gz"


def native() -> str:
    """Return Debian's name for this machine's architecture.

    Raises:
        LabError: images cannot be built on it.
    """
    for architecture, machine in contents.MACHINES.items():
        if machine == platform.machine():
            return architecture
    raise lab_errors.LabError(
        f"images are built on {' and '.join(contents.MACHINES.values())}, not on {platform.machine()}"
    )


@functools.cache
def system(architecture: str) -> Layer:
    """Return the layer with Debian's packages and the user database."""
    archives = packages.fetch(packages.locked(architecture))
    components = tuple(ImageComponent("deb", archive.name, archive.version, archive.sha256) for archive in archives)

    def make() -> Tree:
        tree = Tree()
        for name in ("bin", "sbin", "lib", "lib64"):
            tree.put(name, link(f"usr/{name}"))
        packages.unpack(archives, tree)
        for name in ("python", "python3"):
            tree.put(f"usr/bin/{name}", link(f"python{contents.PYTHON}"))
        # The maintainer script of base-files would create these links, but the build runs no package scripts.
        for name in ("run", "lock"):
            tree.put(f"var/{name}", link("/run" if name == "run" else "/run/lock"))
        tree.put("etc/passwd", Node(content=contents.USERS))
        tree.put("etc/group", Node(content=contents.GROUPS))
        tree.put("etc/nsswitch.conf", Node(content=contents.NAME_SERVICES))
        tree.put("tmp", directory(0o1777))
        with tempfile.TemporaryDirectory(prefix="gpushare-image-") as scratch:
            if architecture == native():
                tree.write(Path(scratch))
                interpreter = Path(scratch)
            else:
                interpreter = native_root()
            bytecode.compile_all(tree, interpreter, native())
        return tree

    return kept("system", [architecture, *map(str, archives)], components, make)


@functools.cache
def native_root() -> Path:
    """Return a directory with this machine's system layer; its interpreter compiles for all architectures."""
    made = system(native())
    target = made.directory / "root"
    if not target.exists():
        with tempfile.TemporaryDirectory(prefix="root.", dir=made.directory) as scratch:
            tree = Tree()
            tree.add_tar(gzip.decompress(made.blob.read_bytes()))
            tree.write(Path(scratch) / "root")
            (Path(scratch) / "root").rename(target)
    return target


def libraries(image: contents.Image, architecture: str) -> Layer:
    """Return the layer with the image's wheels, verified by the lock's hashes."""
    lines = requirements.of(image)
    key = [architecture, lines, system(native()).diff_id]
    fetched: list[ImageComponent] = []

    def make() -> Tree:
        tree = Tree()
        with tempfile.TemporaryDirectory(prefix="gpushare-image-") as scratch:
            installed = wheels.install(lines, architecture, Path(scratch))
            fetched.extend(ImageComponent("pypi", *pair) for pair in installed)
            wheels.add(Path(scratch), tree)
        bytecode.compile_all(tree, native_root(), native())
        return tree

    return kept(f"wheels-{image.name}", key, fetched, make)


def kubectl(architecture: str, program: Path) -> Layer:
    """Return the layer with this kubectl."""
    content = program.read_bytes()
    digest = hashlib.sha256(content).hexdigest()

    def make() -> Tree:
        tree = Tree()
        tree.put("usr/bin/kubectl", Node(0o755, content))
        return tree

    return kept("kubectl", [architecture, digest], [ImageComponent("generic", "kubectl", "", digest)], make)


def own(image: contents.Image, architecture: str, further: dict[str, bytes]) -> Layer:
    """Return the layer with our own packages, `further` files and, for the agent, the libraries that it gives to
    containers.
    """
    tree = Tree()
    for package in image.packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            tree.put(f"{contents.SITE}/{path.relative_to(ROOT).as_posix()}", Node(content=path.read_bytes()))
    for inside, content in further.items():
        tree.put(inside, Node(content=content))
    if image.has_library:
        for machine in contents.MACHINES.values():
            name = f"libgpushare-{machine}.so"
            tree.put(f"{contents.LIBRARIES}/{name}", Node(0o755, preloaded.library(machine).read_bytes()))
        tree.put(f"{contents.LIBRARIES}/libgpushare.so", link(f"libgpushare-{contents.MACHINES[architecture]}.so"))
    tree.put("usr/share/doc/gpushare/copyright", Node(content=(ROOT / "LICENSE").read_bytes()))
    plain = hashlib.sha256(tree.tar()).hexdigest()

    def make() -> Tree:
        bytecode.compile_all(tree, native_root(), native())
        return tree

    return kept(f"gpushare-{image.name}", [plain, system(native()).diff_id], (), make)


def kept(
    name: str, key: list[str], components: list[ImageComponent] | tuple[ImageComponent, ...], make: Callable[[], Tree]
) -> Layer:
    """Return the layer for these inputs (`key`): from the cache, or built now."""
    digest = hashlib.sha256("\n".join([_builder(), *key]).encode()).hexdigest()[:16]
    target = build.cache_directory() / "images" / "layers" / f"{name}-{digest}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
        try:
            _write(scratch, make(), components)
            scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    facts = json.loads((target / "layer.json").read_text())
    facts["components"] = tuple(ImageComponent(**component) for component in facts["components"])
    return Layer(target, **facts)


def _write(directory: Path, tree: Tree, components: list[ImageComponent] | tuple[ImageComponent, ...]) -> None:
    plain = tree.tar(timestamp=timestamp())
    packed = gzip.compress(plain, compresslevel=6, mtime=0)
    facts = {
        "digest": f"sha256:{hashlib.sha256(packed).hexdigest()}",
        "diff_id": f"sha256:{hashlib.sha256(plain).hexdigest()}",
        "size": len(packed),
        "unpacked_size": tree.size(),
        "components": [dataclasses.asdict(component) for component in components],
    }
    (directory / "layer.tar.gz").write_bytes(packed)
    (directory / "layer.json").write_text(json.dumps(facts))


def timestamp() -> int:
    """Return the modification time of all files: SOURCE_DATE_EPOCH if set, else 1970."""
    return int(os.environ.get("SOURCE_DATE_EPOCH", "0"))


@functools.cache
def _builder() -> str:
    """Return a hash of the build modules, so that a change of them builds every layer again."""
    names = ("bytecode", "contents", "layers", "packages", "tree", "wheels")
    sources = ((Path(__file__).parent / f"{name}.py").read_bytes() for name in names)
    return hashlib.sha256(b"".join(sources) + str(timestamp()).encode()).hexdigest()
