"""Finds the kubectl for the image `plugin`: a static program on the build machine. Debian 12's kubectl 1.20 is too
old.
"""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from lab import lab_errors

_MACHINES: Final = {62: "amd64", 183: "arm64"}  # e_machine: Debian's name
_PT_INTERP: Final = 3  # the program header that names a dynamic loader


def choose(paths: Sequence[Path], architectures: Sequence[str]) -> Mapping[str, Path]:
    """Return the kubectl for each architecture, chosen from `paths`; if that is empty, from PATH.

    Raises:
        LabError: an architecture has none, or a program would not run in the image.
    """
    on_path = shutil.which("kubectl")
    candidates = list(paths) or [Path(path) for path in [on_path] if path]
    if not candidates:
        raise lab_errors.LabError("no kubectl on PATH; name one with KUBECTL=PATH")
    by_architecture = {architecture(path): path for path in candidates}
    if missing := [name for name in architectures if name not in by_architecture]:
        given = ", ".join(f"{path} ({name})" for name, path in by_architecture.items())
        raise lab_errors.LabError(
            f"no kubectl for {', '.join(missing)}: there is {given}; name one for each architecture with "
            'KUBECTL="PATH PATH"'
        )
    return {name: by_architecture[name] for name in architectures}


def architecture(path: Path) -> str:
    """Return the architecture of a kubectl.

    Raises:
        LabError: it is not a static Linux program for one of the images' architectures.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise lab_errors.LabError(
            f"kubectl {path} cannot be read: {error.strerror}; name one with KUBECTL=PATH"
        ) from error
    if content[:6] != b"\x7fELF\x02\x01" or (machine := struct.unpack_from("<H", content, 18)[0]) not in _MACHINES:
        known = " or ".join(_MACHINES.values())
        raise lab_errors.LabError(f"kubectl {path} is not a program for Linux on {known}; name one with KUBECTL=PATH")
    (start,), (size, count) = struct.unpack_from("<Q", content, 32), struct.unpack_from("<HH", content, 54)
    if _PT_INTERP in {struct.unpack_from("<I", content, start + size * index)[0] for index in range(count)}:
        raise lab_errors.LabError(
            f"kubectl {path} is linked dynamically, and its libraries are not in the image; name a static one with "
            "KUBECTL=PATH"
        )
    if re.search(rb"v1\.\d+\.\d+-dispatcher", content):
        raise lab_errors.LabError(
            f"kubectl {path} is gcloud's dispatcher, which only starts others; name one of the kubectl.1.N beside it "
            "with KUBECTL=PATH"
        )
    return _MACHINES[machine]
