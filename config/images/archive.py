"""Writes an OCI archive: a single file with layers and the JSON documents that name them.

It also contains Docker's `manifest.json`, for Docker versions that cannot read the OCI index.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from config.images import contents, layers

SEARCH_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
INDEX: Final = "application/vnd.oci.image.index.v1+json"
CONFIG: Final = "application/vnd.oci.image.config.v1+json"
LAYER: Final = "application/vnd.oci.image.layer.v1.tar+gzip"


@dataclasses.dataclass(frozen=True, slots=True)
class Built:
    """An image for one processor: its documents and its layers."""

    architecture: str
    config: bytes
    manifest: bytes
    layers: tuple[layers.Layer, ...]


def image(
    description: contents.Image, architecture: str, made: Sequence[layers.Layer], labels: Mapping[str, str]
) -> Built:
    """Build an image's JSON documents from its layers."""
    config = _json(
        {
            "architecture": architecture,
            "os": "linux",
            "created": datetime.datetime.fromtimestamp(layers.timestamp(), tz=datetime.UTC).isoformat(),
            "config": {
                "User": description.user,
                "Env": [
                    f"PATH={SEARCH_PATH}",
                    "PYTHONDONTWRITEBYTECODE=1",
                    "PYTHONUNBUFFERED=1",
                    "PYTHONSAFEPATH=1",  # never import a module from the working directory
                ],
                "Entrypoint": ["python", "-m", description.module],
                "WorkingDir": "/",
                "Labels": dict(labels),
                "StopSignal": "SIGTERM",
            },
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in made]},
            "history": [
                {"created_by": "config.images", "comment": layer.directory.name.rpartition("-")[0]} for layer in made
            ],
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _descriptor(CONFIG, config),
            "layers": [{"mediaType": LAYER, "digest": layer.digest, "size": layer.size} for layer in made],
            "annotations": dict(labels),
        }
    )
    return Built(architecture, config, manifest, tuple(made))


def top(images: Sequence[Built]) -> tuple[dict[str, Any], bytes]:
    """Return the descriptor and the document that the image's name refers to: a manifest, or an index of several."""
    if len(images) == 1:
        return _platform(images[0]), images[0].manifest
    index = _json({"schemaVersion": 2, "mediaType": INDEX, "manifests": [_platform(built) for built in images]})
    return _descriptor(INDEX, index), index


def write(target: Path, name: str, tag: str, images: Sequence[Built]) -> str:
    """Write the archive of an image for one or more processors; return the digest of its manifest or index."""
    descriptor, document = top(images)
    full_name = f"{name}:{tag}"
    descriptor["annotations"] = {"io.containerd.image.name": full_name, "org.opencontainers.image.ref.name": tag}
    files: dict[str, bytes | Path] = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json({"schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor]}),
        _blob(_digest(document)): document,
        "manifest.json": _json(
            [
                {
                    "Config": _blob(_digest(images[0].config)),
                    "RepoTags": [full_name],
                    "Layers": [_blob(layer.digest) for layer in images[0].layers],
                }
            ]
        ),
    }
    for built in images:
        files[_blob(_digest(built.config))] = built.config
        files[_blob(_digest(built.manifest))] = built.manifest
        files |= {_blob(layer.digest): layer.blob for layer in built.layers}
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f"{target.name}.new")
    with tarfile.open(scratch, "w", format=tarfile.USTAR_FORMAT) as tar:
        for directory in ("blobs", "blobs/sha256"):
            member = tarfile.TarInfo(directory)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(member)
        for path, content in sorted(files.items()):
            data = content.read_bytes() if isinstance(content, Path) else content
            member = tarfile.TarInfo(path)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    scratch.rename(target)
    return str(descriptor["digest"])


def _platform(built: Built) -> dict[str, Any]:
    return _descriptor(MANIFEST, built.manifest) | {"platform": {"architecture": built.architecture, "os": "linux"}}


def _descriptor(kind: str, document: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": _digest(document), "size": len(document)}


def _digest(document: bytes) -> str:
    return f"sha256:{hashlib.sha256(document).hexdigest()}"


def _blob(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
