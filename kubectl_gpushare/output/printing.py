"""Printing lists: one listing, six formats. Data goes to standard output, everything else to standard error."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TextIO

from gpushare import printable
from kubectl_gpushare.options import Options
from kubectl_gpushare.output import terminal
from kubectl_gpushare.output.values import Document, Listing, Page, Table, single_document

# Characters with which a spreadsheet's formula begins, including the wide forms of East Asian keyboards
# (https://owasp.org/www-community/attacks/CSV_Injection). A number or a lone dash is no formula.
_FORMULA: Final = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
_NUMBER: Final = r"[+-][0-9]*\.?[0-9]*"


def show(listing: Listing, options: Options) -> None:
    if options.output in WRITERS:
        WRITERS[options.output](listing, sys.stdout)
    else:
        show_table(listing.table(), options)


def show_page(kind: str, page_of: Callable[[], Page], document_of: Callable[[], Document], options: Options) -> None:
    if options.output:
        write_document(single_document(kind, document_of()), options)
        return
    from kubectl_gpushare.output import layout

    write_lines(layout.page_lines(page_of(), terminal.detect(sys.stdout, color=options.color)), sys.stdout)


def show_table(table: Table, options: Options) -> None:
    if not table.rows:
        where = f" in {options.namespace} namespace" if options.namespace else ""
        print(f"No {table.what} found{where}.", file=sys.stderr)
        return
    write_lines(lines(table, terminal.detect(sys.stdout, color=options.color), options), sys.stdout)


def lines(table: Table, place: terminal.Terminal, options: Options) -> list[str]:
    from kubectl_gpushare.output import layout

    drawn, left_out = layout.draw(table, place, wide=options.wide, headers=not options.no_headers)
    if not place.interactive or options.no_headers:
        return drawn
    sentences = filter(None, (table.caption, f"not shown at this width: {', '.join(left_out)}" if left_out else ""))
    caption = [line for sentence in sentences for line in terminal.wrapped(sentence, place)]
    top = [terminal.paint(line, "dim", on=place.colours) for line in caption]
    return [*top, *([""] if top else []), *drawn]


def warn(sentences: Iterable[str]) -> None:
    place = terminal.detect(sys.stderr)
    for sentence in sentences:
        for line in terminal.wrapped(f"warning: {sentence}", place):
            print(terminal.paint(line, "warn", on=place.colours), file=sys.stderr)


def write_lines(text: Iterable[str], stream: TextIO) -> None:
    stream.write("".join(f"{line}\n" for line in text))
    stream.flush()


def write_words(text: Iterable[str], stream: TextIO) -> None:
    write_lines(map(printable.replaced, text), stream)


def write_json(document: Mapping[str, Any], stream: TextIO) -> None:
    stream.writelines(json_parts(document))
    stream.flush()


def write_yaml(document: Mapping[str, Any], stream: TextIO) -> None:
    stream.writelines(yaml_parts(document))
    stream.flush()


def write_document(document: Mapping[str, Any], options: Options) -> None:
    DOCUMENTS[options.output](document, sys.stdout)


def _csv(listing: Listing, stream: TextIO) -> None:
    import csv

    rows = (dict(_flat(item)) for item in listing.document()["items"])
    writer = csv.writer(stream, lineterminator="\n")
    for first in itertools.islice(rows, 1):
        writer.writerows((map(_cell, first), map(_cell, first.values())))
    writer.writerows(map(_cell, row.values()) for row in rows)
    stream.flush()


def _cell(value: Any) -> Any:
    """Return `value` for a spreadsheet, with a ' before text that would be taken for a formula."""
    if not isinstance(value, str):
        return value
    text = printable.replaced(value)
    return f"'{text}" if text.startswith(_FORMULA) and not re.fullmatch(_NUMBER, text) else text


def _flat(item: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in item.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            parts = (element.values() if isinstance(element, dict) else (element,) for element in value)
            yield prefix + key, ",".join(":".join(map(str, part)) for part in parts)
        elif isinstance(value, bool):
            yield prefix + key, str(value).lower()
        else:
            yield prefix + key, value


DOCUMENTS: Mapping[str, Callable[[Mapping[str, Any], TextIO], None]] = {"json": write_json, "yaml": write_yaml}
WRITERS: Mapping[str, Callable[[Listing, TextIO], None]] = {
    "json": lambda listing, stream: write_json(listing.document(), stream),
    "yaml": lambda listing, stream: write_yaml(listing.document(), stream),
    "csv": _csv,
    "name": lambda listing, stream: write_words(listing.names(), stream),
}


_INDENT = "    "  # kubectl's


def json_parts(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the document as kubectl prints JSON, with a newline at its end. Its lists may be iterators.

    Unprintable characters are escaped: parsers get them back, and a terminal does not act on them. With iterators only
    one of the 40,000 items of a large cluster is in memory at a time.
    """
    from json import JSONEncoder

    encoder = JSONEncoder(indent=len(_INDENT), ensure_ascii=False)

    def encode(part: Any) -> str:
        return printable.escaped(encoder.encode(part))

    before = "{"
    for key, value in document.items():
        yield f"{before}\n{_INDENT}{encode(key)}: "
        before = ","
        if not isinstance(value, Iterator):
            yield _indented(encode(value), 1)
            continue
        comma = ""
        for item in value:
            yield f"{comma or '['}\n{_INDENT * 2}{_indented(encode(item), 2)}"
            comma = ","
        yield f"\n{_INDENT}]" if comma else "[]"
    yield "\n}\n"


def _indented(text: str, depth: int) -> str:
    return text.replace("\n", "\n" + _INDENT * depth)  # JSON strings contain no newline


def yaml_parts(document: Mapping[str, Any]) -> Iterator[str]:
    import yaml as library

    dumper = getattr(library, "CSafeDumper", library.SafeDumper)

    def write(part: Any, by: Any, *, as_is: bool) -> str:
        text: str = library.dump(part, None, by, sort_keys=False, allow_unicode=as_is, width=4096)
        return text

    def dump(part: Any) -> str:
        with contextlib.suppress(UnicodeEncodeError):  # libyaml cannot write lone surrogates
            if printable.is_document(text := write(part, dumper, as_is=True)):
                return text
        return write(part, library.SafeDumper, as_is=False)

    for key, value in document.items():
        if not isinstance(value, Iterator):
            yield dump({key: value})
            continue
        empty = True
        for item in value:
            yield f"{key}:\n{dump([item])}" if empty else dump([item])
            empty = False
        if empty:
            yield dump({key: []})
