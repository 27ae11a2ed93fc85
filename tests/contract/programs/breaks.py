"""Test file of a small project: it cannot be collected."""

raise ImportError("cannot be collected")
