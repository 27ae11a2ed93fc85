"""The manifests on disk: the files of a kustomization and their contents."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from gpushare.object_parsers import read_yaml

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIG = REPOSITORY / "config"
REFUSED = sorted((CONFIG / "samples" / "refused").glob("*.yaml"))
SAMPLES = sorted((CONFIG / "samples").glob("*.yaml"))
WORKLOADS = sorted((CONFIG / "samples" / "workloads").glob("*.yaml"))
TORCHRUN = CONFIG / "samples" / "torchrun" / "elastic-job.yaml"


def objects(directory: Path = CONFIG / "default") -> list[dict[str, Any]]:
    """Return all objects of a kustomization, before its transformers."""
    return [document for path in files(directory) for document in documents(path)]


def files(directory: Path) -> Iterator[Path]:
    """Return the files of a kustomization and of those it refers to."""
    for resource in yaml.safe_load((directory / "kustomization.yaml").read_text())["resources"]:
        path = (directory / resource).resolve()
        if path.is_dir():
            yield from files(path)
        else:
            yield path


def documents(path: Path) -> list[dict[str, Any]]:
    """Return the documents of one file."""
    return [document for document in read_yaml(path.read_text()) if document]


@contextlib.contextmanager
def together(*directories: Path, components: Sequence[Path] = ()) -> Iterator[str]:
    """Make a directory for kubectl's --kustomize with the objects of several, and with components."""
    with tempfile.TemporaryDirectory() as scratch:

        def relative(paths: Iterable[Path]) -> list[str]:
            return [os.path.relpath(path, os.path.realpath(scratch)) for path in paths]

        wanted = {"resources": relative(directories), "components": relative(components)}
        (Path(scratch) / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
        yield scratch


def named(kind: str, name: str, directory: Path = CONFIG / "default") -> dict[str, Any]:
    """Return the one object of that kind and name."""
    (manifest,) = [doc for doc in objects(directory) if (doc["kind"], doc["metadata"]["name"]) == (kind, name)]
    return manifest
