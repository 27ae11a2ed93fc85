"""The error tree of the domain.

Every message is one sentence that a person can act on. Refusals are not errors: see `gpushare.refusal`.
"""

from __future__ import annotations

from gpushare import printable


class GpushareError(ValueError):
    """Any input that the domain does not accept."""


class QuantityError(GpushareError):
    """A text that is not a Kubernetes quantity or a fraction of a GPU."""


class RequestError(GpushareError):
    """An invalid annotation; the message names key, value and remedy."""

    def __init__(self, key: str, value: str, remedy: str) -> None:
        super().__init__(f"{shortened(key, longest=128)} {quoted(value)} {remedy}")
        self.key = key
        self.value = value


class CodecError(GpushareError):
    """An invalid object from the API; the message names the field."""


class LedgerError(GpushareError):
    """A change that would break a rule of the ledger."""


class ConfigError(GpushareError):
    """An invalid configuration; the message names line and key if known."""


def shown(value: object) -> str:
    """Return a value of any type as Python writes it, printable and short enough for a sentence."""
    return shortened(repr(value), longest=64)


def shortened(text: str, *, longest: int = 300) -> str:
    """Return `text`, printable and cut to that length."""
    plain = printable.replaced(text[: longest + 1])
    return f"{plain[:longest]}…" if len(plain) > longest else plain


def quoted(text: str, *, longest: int = 64) -> str:
    """Return `text` in quotes, printable and short enough for a sentence, even if a user wrote it."""
    return f'"{shortened(text, longest=longest)}"'
