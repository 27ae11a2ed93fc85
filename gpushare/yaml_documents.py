"""Reads the documents of a YAML (or JSON) text, as kubectl prints objects and people write them, of bounded depth and
size.

The library composes nested values by a recursive C function: a text that is nested 100,000 levels deep would end the
process, with no error to catch. And lists of aliases to lists of aliases stand for exponentially many values.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any, Final

from gpushare import errors

MAX_DEPTH: Final = 100  # levels; an object of the API server has about 20
MAX_REPEATED: Final = 100_000  # values that aliases may stand for, besides those in the text

_TOO_DEEP: Final = f"it is nested too deeply: at most {MAX_DEPTH} levels are allowed"
_ALIAS: Final = re.compile(r"(?:^|[\s\[{,:-])\*[^\s*]")


def read(text: str) -> Iterator[Any]:
    """Yield the documents. Raises CodecError, with the line if known."""
    import yaml  # not earlier: the plugin starts faster without it

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
    # Raised for text that looks like a type but is no value of it, such as a 13th month.
    except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError) as error:
        if isinstance(error, errors.CodecError):
            raise
        raise errors.CodecError(f"a value does not have the type that its notation implies: {error}") from error


@functools.cache
def _loader() -> Any:
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # whichever there is
        """The library's loader, with a limit on the depth."""

        depth = 0

        def descend_resolver(self, current_node: Any, current_index: Any) -> None:
            """As the base class, one level down."""
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise yaml.YAMLError(_TOO_DEEP)
            super().descend_resolver(current_node, current_index)

        def ascend_resolver(self) -> None:
            """As the base class, one level up."""
            super().ascend_resolver()
            self.depth -= 1

    return Loader


def _count(document: Any) -> None:
    """Raise CodecError for a value that by aliases stands for too many values, or for infinitely many."""
    known: dict[int, tuple[int, int]] = {}  # of lists and mappings, by identity: the number of values, and the depth
    inside: set[int] = set()
    written = 0

    def extent(value: Any) -> tuple[int, int]:
        nonlocal written
        if not isinstance(value, (list, dict)):
            written += 1
            return 1, 0
        if id(value) in inside:
            raise errors.CodecError("an alias refers to a value that contains it")
        if id(value) not in known:
            written += 1
            inside.add(id(value))
            within = [extent(child) for child in (value.values() if isinstance(value, dict) else value)]
            inside.discard(id(value))
            known[id(value)] = 1 + sum(size for size, _ in within), 1 + max((levels for _, levels in within), default=0)
        return known[id(value)]

    values, levels = extent(document)
    if levels > MAX_DEPTH:
        raise errors.CodecError(_TOO_DEEP)
    if values > written + MAX_REPEATED:
        raise errors.CodecError(f"its aliases expand to more than {MAX_REPEATED} values")
