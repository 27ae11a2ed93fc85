"""A random world of pods on one node, and the views of it that have to agree."""
