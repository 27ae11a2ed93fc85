"""An image's part of requirements.lock; `python -m config.images.requirements NAME` prints it for a Containerfile."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from config.images import contents

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements.lock"


def of(image: contents.Image, lock: Path = LOCK) -> str:
    """Return the lock's entries for the image's wheels, with hashes and environment markers.

    Raises:
        ValueError: the lock lacks one.
    """
    entries = re.split(r"\n(?=\S)", lock.read_text().rstrip())
    wanted = [entry for entry in entries if _project(entry) in image.wheels]
    if missing := sorted(set(image.wheels) - set(map(_project, wanted))):
        raise ValueError(
            f"{lock} has no {', '.join(missing)} for the image {image.name}; correct config/images/contents.py"
        )
    return "".join(f"{entry}\n" for entry in wanted)


def _project(entry: str) -> str:
    return entry.partition("==")[0]


if __name__ == "__main__":
    (chosen,) = (image for image in contents.IMAGES if image.name == sys.argv[1])
    sys.stdout.write(of(chosen))
