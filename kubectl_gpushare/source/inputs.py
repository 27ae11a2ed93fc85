"""Inputs: the text of a file that the command line names; `-` is standard input. Always UTF-8, whatever the locale."""

from __future__ import annotations

import sys
from pathlib import Path

from kubectl_gpushare import errors


def name(path: str) -> str:
    """What the file is called in a sentence."""
    return "standard input" if path == "-" else path


def text(path: str) -> str:
    """Its text. Raises `FileError`."""
    try:
        return (sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()).decode("utf-8-sig")
    except OSError as error:
        raise errors.FileError(f"{name(path)} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise errors.FileError(f"{name(path)} cannot be read: it is no text") from error
