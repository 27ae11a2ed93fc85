"""How programs are started: as they are, in a share of gpushare's, or with another library that limits them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from tests.interposer import container


@dataclasses.dataclass(frozen=True, slots=True)
class Mode:
    """How a program is started: which library is preloaded, and what its environment says.

    variables: values may hold {limit} (percent), {memory} (bytes) and {memory_mib}.
    """

    name: str
    preload: tuple[Path, ...] = ()
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def ours(self) -> bool:
        return self.preload == OURS.preload


NATIVE = Mode("native")
OURS = Mode("gpushare", (container.LIBRARY,))


def parse_peer(text: str) -> Mode:
    """NAME=PATH[,VARIABLE=VALUE...]. Raises ValueError."""
    first, *rest = text.split(",")
    name, _, path = first.partition("=")
    if not name or not Path(path).is_file() or not all("=" in pair for pair in rest):
        raise ValueError(f"{text!r} is not NAME=PATH[,VARIABLE=VALUE...] with the path of a library that is there")
    return Mode(name, (Path(path).resolve(),), dict(pair.split("=", 1) for pair in rest))
