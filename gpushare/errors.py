"""The error tree of the domain.

    GpushareError(ValueError)
    ├── QuantityError       a text that is not a quantity
    ├── RequestError        an annotation that cannot be honoured: key, value, remedy
    ├── CodecError          an object from the API that is invalid
    ├── LedgerError         a change that would break a rule of the ledger
    └── ConfigError         a configuration that cannot be: line, key, remedy

Every message is one sentence that a person can act on. Refusals are not errors: see `gpushare.refusal`.
"""

from __future__ import annotations

from gpushare import printable


class GpushareError(ValueError):
    """Anything the domain cannot accept."""


class QuantityError(GpushareError):
    """A text that is not a Kubernetes quantity or part of a GPU."""


class RequestError(GpushareError):
    """An annotation that cannot be honoured; the message names key, value and remedy."""

    def __init__(self, key: str, value: str, remedy: str) -> None:
        super().__init__(f"{shortened(key, longest=128)} {quoted(value)} {remedy}")
        self.key = key
        self.value = value


class CodecError(GpushareError):
    """An object from the API that is invalid; the message names the field."""


class LedgerError(GpushareError):
    """A change that would break a rule of the ledger."""


class ConfigError(GpushareError):
    """An invalid configuration; the message names line and key if they are known."""


def shown(value: object) -> str:
    """Return any value as Python writes it, printable and short enough for a sentence."""
    return shortened(repr(value), longest=64)


def shortened(text: str, *, longest: int = 300) -> str:
    """Return `text`, printable and cut to that length."""
    plain = printable.replaced(text[: longest + 1])
    return f"{plain[:longest]}…" if len(plain) > longest else plain


def quoted(text: str, *, longest: int = 64) -> str:
    """Return any user's `text` in quotes, printable and short enough for a sentence."""
    return f'"{shortened(text, longest=longest)}"'
