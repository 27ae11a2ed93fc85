"""The public GPU-sharing trace "openb", and schedulers that are tried on it."""
