"""Builds the images into build/images. Unchanged layers come from a cache, so a rebuild after a code change takes
seconds.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import gpushare
from config.images import archive, contents, kubectl, layers, sbom
from lab import build, lab_errors


@dataclasses.dataclass(frozen=True, slots=True)
class Archive:
    """An image that is stored in an archive."""

    path: Path
    name: str  # with its tag, as manifests write it
    digest: str
    size: int  # total compressed size of the first processor's layers
    unpacked_size: int


@dataclasses.dataclass(frozen=True, slots=True)
class Archives:
    """The archives of all images; `plugin` is None if no suitable kubectl was found."""

    webhook: Archive
    agent: Archive
    plugin: Archive | None = None

    def by_name(self) -> Mapping[str, Archive]:
        """Return the built images by name."""
        return {image.name: made for image in contents.IMAGES if (made := getattr(self, image.name)) is not None}


def ensure(
    architectures: Sequence[str] = (),
    *,
    directory: Path = layers.BUILD,
    revision: str = "",
    kubectls: Sequence[Path] = (),
) -> Archives:
    """Build the images that have changed; return all archives.

    architectures: Debian's names; by default this machine's. revision: the source's, for a label. By default there is
    none, so that the same files give the same digest. kubectls: one for each architecture, for the image `plugin`. By
    default the one on PATH; if that one is unsuitable,
        the image is left out.

    Raises:
        LabError: something is missing; the message says what.
    """
    chosen = tuple(architectures) or (layers.native(),)
    if unknown := sorted(set(chosen) - set(contents.MACHINES)):
        known = ", ".join(contents.MACHINES)
        raise lab_errors.LabError(
            f"there are no images for {', '.join(unknown)}; write ARCHITECTURES with some of: {known}"
        )
    try:
        programs = kubectl.choose(kubectls, chosen)
    except lab_errors.LabError as error:
        if kubectls:
            raise
        print(f"warning: the image plugin is not built: {error}", file=sys.stderr)
        programs = {}
    directory.mkdir(parents=True, exist_ok=True)
    cache = build.cache_directory() / "images"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = {
            image.name: _build(image, chosen, directory, revision, programs)
            for image in contents.IMAGES
            if programs or not image.has_kubectl
        }
    return Archives(**made)


def _build(
    image: contents.Image, architectures: Sequence[str], directory: Path, revision: str, kubectls: Mapping[str, Path]
) -> Archive:
    labels = {
        "org.opencontainers.image.title": image.title,
        "org.opencontainers.image.version": gpushare.__version__,
        "org.opencontainers.image.licenses": "Apache-2.0",
        **({"org.opencontainers.image.revision": revision} if revision else {}),
    }
    built = []
    for architecture in architectures:
        made = [layers.system(architecture), layers.libraries(image, architecture)]
        if image.has_kubectl:
            made.append(layers.kubectl(architecture, kubectls[architecture]))
        parts = [part for layer in made for part in layer.components]
        bill = sbom.write(image, architecture, parts)
        (directory / f"{image.name}-{architecture}.cdx.json").write_bytes(bill)
        made.append(layers.own(image, architecture, {sbom.PATH: bill}))
        built.append(archive.image(image, architecture, made, labels))
    name, tag = f"{contents.NAMESPACE}/{image.name}", gpushare.__version__
    path = directory / f"{image.name}.tar"
    stamp = path.with_suffix(".json")
    descriptor, _ = archive.top(built)
    facts = {"digest": descriptor["digest"], "name": f"{name}:{tag}"}
    if not (path.exists() and stamp.exists() and json.loads(stamp.read_text()) == facts):
        stamp.unlink(missing_ok=True)
        archive.write(path, name, tag, built)
        stamp.write_text(json.dumps(facts))
    sizes = [(layer.size, layer.unpacked_size) for layer in built[0].layers]
    return Archive(
        path, f"{name}:{tag}", descriptor["digest"], sum(size for size, _ in sizes), sum(size for _, size in sizes)
    )
