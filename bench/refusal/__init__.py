"""Pods that are expensive to refuse: a cluster, the known ones, and the search for more expensive ones."""
