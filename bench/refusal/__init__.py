"""Pods that are dear to refuse: a cluster to refuse them in, those that are known, and the search for dearer ones."""
