"""Resource names, and the patterns that map GPUs to them, as in NVIDIA's plugin."""

from __future__ import annotations

import re
from typing import Final

from gpushare import errors

PREFIX: Final = "nvidia.com/"
MAX: Final = 63
GPU: Final = "nvidia.com/gpu"
SHARED_SUFFIX: Final = ".shared"

_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")


def parse(text: str) -> str:
    """Return the full name: `gpu` is `nvidia.com/gpu`. Raises ConfigError, a sentence without its subject."""
    name = text if text.startswith(PREFIX) else PREFIX + text
    if len(name) > MAX:
        raise errors.ConfigError(f"fully-qualified resource name must be {MAX} characters or less, not {len(name)}")
    if not _SUBDOMAIN.fullmatch(name.removeprefix(PREFIX)):
        raise errors.ConfigError(
            f"incorrect format for resource name: write {PREFIX} and then lower-case letters, digits, '-' and "
            "'.', with a letter or digit at both ends"
        )
    return name


def shared(name: str) -> str:
    """Return the name that `renameByDefault` gives. It may be longer than `MAX`; Kubernetes accepts it."""
    return name + SHARED_SUFFIX


def matches(pattern: str, text: str) -> bool:
    """Whether `text` matches `pattern`, in which `*` stands for anything and all else for itself."""
    parts = pattern.split("*")
    if len(parts) == 1:
        return text == pattern
    if not text.startswith(parts[0]):
        return False
    position = len(parts[0])
    for part in parts[1:-1]:
        start = text.find(part, position)
        if start < 0:
            return False
        position = start + len(part)
    return len(text) - position >= len(parts[-1]) and text.endswith(parts[-1])
