"""Test file of a small project that cannot be collected."""

raise ImportError("cannot be collected")
