"""What is in force on each GPU, on disk: the next agent serves the same before it has heard of the API server."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from deviceplugin.disk import records, whole_file
from deviceplugin.modes.configured_gpus import ConfiguredGpu
from gpushare.config.config_choice import ActiveConfig
from gpushare.modes.assignment import Assignment

VERSION: Final = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """Immutable; a change makes a new one.

    current: the last configuration that was good; what GPUs are to be by.
    gpus: by UUID what a GPU is used for; None for one that is being set up, and offered to nobody.
    before: of one that is being set up, what it was used for, and has to be taken out of.
    seats: the GPUs that `current` was understood for.
    """

    current: ActiveConfig
    gpus: Mapping[str, Assignment | None] = dataclasses.field(default_factory=dict)
    before: Mapping[str, Assignment] = dataclasses.field(default_factory=dict)
    seats: Sequence[ConfiguredGpu] = ()

    def of(self, uuid: str, assignment: Assignment | None) -> Checkpoint:
        """With that GPU used for that."""
        before = {gpu: was for gpu, was in self.before.items() if gpu != uuid or assignment is None}
        present = self.gpus.get(uuid)
        if assignment is None and present is not None:
            before[uuid] = present
        return dataclasses.replace(self, gpus={**self.gpus, uuid: assignment}, before=before)

    def last(self, uuid: str) -> Assignment | None:
        """What a GPU is used for, or was before it was begun to be set up."""
        return self.gpus.get(uuid) or self.before.get(uuid)


class CheckpointError(Exception):
    """The book on disk cannot be used; the message says what happens then."""


def write(path: Path, book: Checkpoint) -> None:
    """Put the book on disk, whole or not at all, so that it outlives a power cut."""
    document = {
        "version": VERSION,
        "current": records.write(book.current),
        "gpus": {uuid: records.write(assignment) for uuid, assignment in sorted(book.gpus.items())},
        "before": {uuid: records.write(assignment) for uuid, assignment in sorted(book.before.items())},
        "seats": [records.write(seat) for seat in book.seats],
    }
    whole_file.write(path, json.dumps(document, indent=1), lasting=True)


def read(path: Path) -> Checkpoint | None:
    """The book on disk, or None if there is none. Raises CheckpointError."""
    try:
        document = records.load(path)
        records.check(document["version"] == VERSION, f"it is of version {document['version']}")
        gpus = {
            str(uuid): None if assignment is None else records.read(Assignment, assignment)
            for uuid, assignment in document["gpus"].items()
        }
        before = {
            str(uuid): records.read(Assignment, assignment) for uuid, assignment in document.get("before", {}).items()
        }
        seats = tuple(records.read(ConfiguredGpu, seat) for seat in document.get("seats", ()))
        return Checkpoint(records.read(ActiveConfig, document["current"]), gpus, before, seats)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}): what the GPUs are used for is found again"
        ) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        aside = whole_file.set_aside(path)
        what = "what the GPUs are used for is found again"
        raise CheckpointError(f"{path} is invalid ({error}) and is now {aside.name}: {what}") from error
