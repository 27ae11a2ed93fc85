"""The documents of a YAML (or JSON) text, as printed by kubectl or written by people, with limited depth and size.

The YAML library parses nested values by recursion in C, so a text with 100,000 levels would crash the process. And
lists of aliases to lists of aliases grow exponentially.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any, Final

from gpushare import errors

DEEPEST: Final = 100  # levels; of an object that an API server takes there are some 20
MAX_REPEATED: Final = 100_000  # values that aliases repeat, in addition to the written ones

_TOO_DEEP: Final = f"it is nested too deeply: at most {DEEPEST} levels make sense"
_ALIAS: Final = re.compile(r"(?:^|[\s\[{,:-])\*[^\s*]")


def read(text: str) -> Iterator[Any]:
    """Yield the documents. Raises CodecError, with the line if it is known."""
    import yaml  # not before: the plugin starts faster without

    try:
        for document in yaml.load_all(text.removeprefix("\ufeff"), _loader()):
            if _ALIAS.search(text):
                _count(document)
            yield document
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark is not None else ""
        raise errors.CodecError(f"{line}{error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise errors.CodecError(" ".join(str(error).split())) from error
    # From a value that looks like a type whose values it cannot have, such as a date with a 13th month.
    except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError) as error:
        if isinstance(error, errors.CodecError):
            raise
        raise errors.CodecError(f"a value does not have the type that it seems to have: {error}") from error


@functools.cache
def _loader() -> Any:
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # whichever there is
        """The library's loader, with a limited depth."""

        depth = 0

        def descend_resolver(self, current_node: Any, current_index: Any) -> None:
            """Go one level down."""
            self.depth += 1
            if self.depth > DEEPEST:
                raise yaml.YAMLError(_TOO_DEEP)
            super().descend_resolver(current_node, current_index)

        def ascend_resolver(self) -> None:
            """Go one level up."""
            super().ascend_resolver()
            self.depth -= 1

    return Loader


def _count(document: Any) -> None:
    """Raise CodecError if aliases make the document endless, or far larger than it was written."""
    known: dict[int, tuple[int, int]] = {}  # of lists and mappings, by identity: values in all, and levels
    inside: set[int] = set()
    written = 0

    def extent(value: Any) -> tuple[int, int]:
        nonlocal written
        if not isinstance(value, (list, dict)):
            written += 1
            return 1, 0
        if id(value) in inside:
            raise errors.CodecError("an alias stands for what it is itself in")
        if id(value) not in known:
            written += 1
            inside.add(id(value))
            within = [extent(child) for child in (value.values() if isinstance(value, dict) else value)]
            inside.discard(id(value))
            known[id(value)] = 1 + sum(size for size, _ in within), 1 + max((levels for _, levels in within), default=0)
        return known[id(value)]

    values, levels = extent(document)
    if levels > DEEPEST:
        raise errors.CodecError(_TOO_DEEP)
    if values > written + MAX_REPEATED:
        raise errors.CodecError(f"its aliases stand for more than {MAX_REPEATED} values")
