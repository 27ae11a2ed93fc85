"""The one error of the lab: a sentence for the person who runs it."""

from __future__ import annotations


class LabError(RuntimeError):
    """The lab cannot do what was asked; the message says what, why and what to do about it."""
