"""The lab's only exception; its message is written for the user."""

from __future__ import annotations


class LabError(RuntimeError):
    """The lab cannot do what the user wants; the message gives the reason and the remedy."""
