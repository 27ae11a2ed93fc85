"""The public GPU-sharing trace "openb", and the schedulers that run on it."""
