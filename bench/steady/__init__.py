"""A steady stream of pods on a whole cluster while something fails: the load, and the checks."""
