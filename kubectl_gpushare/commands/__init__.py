"""Verbs: fetch → view → print. Small ones have their view in the same file; `cordoning` has `cordon` and `uncordon`."""
