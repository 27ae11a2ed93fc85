"""The record of each GPU's mode on disk. The next agent serves the same modes before it reaches the API server."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deviceplugin.host import records
from deviceplugin.modes.desired_config import ConfiguredGpu
from gpushare.config.config_choice import ActiveConfig
from gpushare.modes.assignment import Assignment

NAME: Final = "modes.json"
VERSION: Final = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """An immutable record; a change makes a new one. current: the last valid configuration.

    gpus: by UUID, the assignment in force; None for a GPU that is being set up and is offered to no pod. before: its
    last assignment, which has to be torn down. known_gpus: those that `current` was applied to; on disk, `seats`.
    """

    current: ActiveConfig
    gpus: Mapping[str, Assignment | None] = dataclasses.field(default_factory=dict)
    before: Mapping[str, Assignment] = dataclasses.field(default_factory=dict)
    known_gpus: Sequence[ConfiguredGpu] = ()

    def assign(self, uuid: str, assignment: Assignment | None) -> Checkpoint:
        """Return a copy in which this GPU has this assignment; None vacates it."""
        before = {gpu: was for gpu, was in self.before.items() if gpu != uuid or assignment is None}
        present = self.gpus.get(uuid)
        if assignment is None and present is not None:
            before[uuid] = present
        return dataclasses.replace(self, gpus={**self.gpus, uuid: assignment}, before=before)

    def last(self, uuid: str) -> Assignment | None:
        """Return the GPU's assignment, or its last one if it is being set up."""
        return self.gpus.get(uuid) or self.before.get(uuid)


class CheckpointError(Exception):
    """The file cannot be used; the message says what the agent does instead."""


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Write the file atomically, and sync it so that it survives a power failure. Raises OSError."""
    document = {
        "version": VERSION,
        "current": records.to_json(checkpoint.current),
        "gpus": {uuid: _to_json(assignment) for uuid, assignment in sorted(checkpoint.gpus.items())},
        "before": {uuid: _to_json(assignment) for uuid, assignment in sorted(checkpoint.before.items())},
        "seats": [records.to_json(gpu) for gpu in checkpoint.known_gpus],
    }
    records.write_file(path, json.dumps(document, indent=1), lasting=True)


def _to_json(assignment: Assignment | None) -> Any:
    """Return an assignment without its isolations and SM partitions, which the configuration has.

    Release 0.3.0 rejects them.
    """
    document = records.to_json(assignment)
    for part in () if assignment is None else (document, *document["shared"]):
        part.pop("isolations", None)
        part.pop("sm_partitions", None)
    return document


def read(path: Path) -> Checkpoint | None:
    """Read the file; return None if there is none. Raises CheckpointError."""
    try:
        document = records.load(path)
        records.check(document["version"] == VERSION, f"unsupported version {document['version']}")
        gpus = records.read(dict[str, Assignment | None], document["gpus"])
        before = records.read(dict[str, Assignment], document.get("before", {}))
        known_gpus = records.read(tuple[ConfiguredGpu, ...], document.get("seats", []))
        return Checkpoint(records.read(ActiveConfig, document["current"]), gpus, before, known_gpus)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}): the modes are determined again") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        aside = records.set_aside(path)
        what = "the modes are determined again"
        raise CheckpointError(f"{path} is invalid ({error}) and is now {aside.name}: {what}") from error
