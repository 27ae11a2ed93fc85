"""Verbs: one file each; `fetch → view → print`."""
