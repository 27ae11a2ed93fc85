"""A YAML text as a tree that knows the key and line of each value, so that every error can name both.

Scalars are read as NVIDIA's plugin reads them. Its parser differs from Python's in one thing that matters here: `1:0`
is the text of a MIG index, not sixty.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import yaml

from gpushare import errors

MAX_TEXT: Final = 256 * 1024  # far more than a person writes, and parsed in a few seconds
MAX_ITEMS: Final = 50_000
MAX_DEPTH: Final = 32

_TOO_DEEP: Final = f"nested too deeply: at most {MAX_DEPTH} levels are allowed"
_TAG: Final = "tag:yaml.org,2002:"
_SCALARS: Final = {
    "merge": ("<", r"<<"),
    "null": (["~", "n", "N", ""], r"~|null|Null|NULL|"),
    "bool": ("yYnNtTfFoO", r"yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF"),
    "int": ("-+0123456789", r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)"),
    "float": (
        "-+0123456789.",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    ),
}  # by type: the first characters, and the pattern
_BOOLS: Final = {word: word in {"yes", "true", "on"} for word in ("yes", "no", "true", "false", "on", "off")}

Value: TypeAlias = "bool | int | float | str | tuple[Item, ...] | Mapping[str, Item] | None"


class _Loader(yaml.SafeLoader):
    """Composes nodes up to a depth; the table above defines scalars."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node as the library does, with a limit on the depth."""
        self._depth += 1
        if self._depth > MAX_DEPTH + 1:
            line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]
            raise errors.ConfigError(f"line {line}: {_TOO_DEEP}")
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


_Loader.yaml_implicit_resolvers = {}
for _name, (_first, _pattern) in _SCALARS.items():
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(f"(?:{_pattern})$"), list(_first))


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    """A value, its path (`sharing.mps.resources[0].name`, "" at the top) and its line (from 1; 0: unknown)."""

    path: str
    line: int
    value: Value

    def error(self, problem: str) -> errors.ConfigError:
        """Return the error that this value has `problem`, a sentence without its subject."""
        return errors.ConfigError(self.says(problem))

    def says(self, problem: str) -> str:
        """Return line, key and value, then `problem`."""
        return f"{located(self.path, self.line)}{self.shown()}: {problem}"

    def shown(self) -> str:
        """Return the value for a message, after a space, if it is short enough: ` 1`, ` "abc"`."""
        if self.value is None or isinstance(self.value, (tuple, Mapping)):
            return ""
        return f" {errors.quoted(self.value)}" if isinstance(self.value, str) else f" {scalar_text(self.value)}"


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """The tree of a text, and a sentence for each part without effect."""

    root: Item
    warnings: tuple[str, ...] = ()


def located(path: str, line: int) -> str:
    """Return `line 3: sharing.mps`, or as much of it as is known."""
    return f"line {line}: {path or 'the file'}" if line else path or "the value"


def scalar_text(value: bool | int | float | None) -> str:
    """Return a scalar that is not text, as YAML writes it."""
    words: dict[object, str] = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def parse(text: str) -> Document:
    """Return the tree of a YAML (or JSON) text; the first of several documents. Raises ConfigError with the line."""
    warnings: list[str] = []
    with _as_config_errors():
        loader = _loader(text)
        node = loader.get_node() if loader.check_node() else None
        if loader.check_node():
            warnings.append("the file has more than one document: only the first is read")
    root = Item("", 1, None) if node is None else _Reader(warnings, MAX_ITEMS).item(node, "", 0)
    return Document(root, tuple(warnings))


def documents(text: str) -> tuple[Document, ...]:
    """Return the trees of all documents of a YAML text. Raises ConfigError with the line."""
    nodes: list[yaml.Node] = []
    with _as_config_errors():
        loader = _loader(text)
        while loader.check_node():
            nodes += filter(None, [loader.get_node()])
    read, left = [], MAX_ITEMS
    for node in nodes:
        warnings: list[str] = []
        reader = _Reader(warnings, left)
        read.append(Document(reader.item(node, "", 0), tuple(warnings)))
        left = reader.left
    return tuple(read)


def _loader(text: str) -> _Loader:
    if len(text) > MAX_TEXT:
        raise errors.ConfigError(f"the file has {len(text)} characters: at most {MAX_TEXT} are allowed")
    return _Loader(text.removeprefix("\ufeff"))


@contextlib.contextmanager
def _as_config_errors() -> Iterator[None]:
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark is not None else ""
        raise errors.ConfigError(f"{line}the file is not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise errors.ConfigError(f"the file is not YAML: {' '.join(str(error).split())}") from error
    except (ValueError, OverflowError) as error:  # for example an escape that stands for no character
        raise errors.ConfigError(f"the file is not YAML: {error}") from error


def plain(item: Item) -> Any:
    """Return the tree without its lines: what `json.loads` would return."""
    if isinstance(item.value, Mapping):
        return {key: plain(value) for key, value in item.value.items()}
    if isinstance(item.value, tuple):
        return [plain(value) for value in item.value]
    return item.value


def below(path: str, key: str) -> str:
    """Return the path of `key` in the mapping at `path`."""
    shown = key if re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", key) else errors.quoted(key)
    return f"{path}.{shown}" if path else shown


class _Reader:
    """Converts nodes to items, with a limit on their number, because an alias can stand for many nodes."""

    def __init__(self, warnings: list[str], left: int) -> None:
        self._warnings = warnings
        self.left = left

    def item(self, node: yaml.Node, path: str, depth: int) -> Item:
        line = node.start_mark.line + 1
        self.left -= 1
        if self.left < 0:
            raise errors.ConfigError(f"{located(path, line)}: the file has more than {MAX_ITEMS} values")
        if depth > MAX_DEPTH:
            raise errors.ConfigError(f"{located(path, line)}: {_TOO_DEEP}")
        if isinstance(node, yaml.MappingNode):
            return Item(path, line, self._entries(node, path, depth))
        if isinstance(node, yaml.SequenceNode):
            entries = (self.item(value, f"{path}[{index}]", depth + 1) for index, value in enumerate(node.value))
            return Item(path, line, tuple(entries))
        return Item(path, line, _scalar(node, path, line))

    def _entries(self, node: yaml.MappingNode, path: str, depth: int) -> dict[str, Item]:
        merged: dict[str, Item] = {}
        own: dict[str, Item] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise errors.ConfigError(f"{located(path, line)}: a key is a list or a mapping: write a string")
            if key_node.tag == _TAG + "merge":
                sources = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                if not all(isinstance(source, yaml.MappingNode) for source in sources):
                    raise errors.ConfigError(f"{located(path, line)}: << can only merge mappings")
                for source in reversed(sources):
                    self.left -= 1
                    if depth >= MAX_DEPTH or self.left < 0:
                        said = f"merged too deeply: at most {MAX_DEPTH} levels are allowed"
                        raise errors.ConfigError(f"{located(path, line)}: {said}")
                    merged |= self._entries(source, path, depth + 1)
                continue
            scalar = _scalar(key_node, path, line)
            key = scalar if isinstance(scalar, str) else scalar_text(scalar)
            if key in own:
                self._warnings.append(f"{located(below(path, key), line)} is written twice: only the last one counts")
            item = self.item(value_node, below(path, key), depth + 1)
            own[key] = dataclasses.replace(item, line=line)
        return merged | own


def _scalar(node: yaml.Node, path: str, line: int) -> bool | int | float | str | None:
    text: str = node.value
    kind = node.tag.removeprefix(_TAG)
    try:
        match kind:
            case "str":
                return text
            case "null":
                return None
            case "bool":
                return _BOOLS[text.lower()]
            case "int":
                return _integer(text)
            case "float":
                number = float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
                return int(number) if number.is_integer() and abs(number) < 2**63 else number
    except (KeyError, ValueError) as error:
        raise errors.ConfigError(f"{located(path, line)} {errors.quoted(text)}: is not of type {kind}") from error
    raise errors.ConfigError(f"{located(path, line)}: has the tag {errors.quoted(node.tag)}: remove it")


def _integer(text: str) -> int:
    digits = text.replace("_", "")
    if re.fullmatch(r"[-+]?0[0-7]+", digits):
        return int(digits, 8)
    if len(digits) > 64:
        raise ValueError(text)
    return int(digits, 0)
