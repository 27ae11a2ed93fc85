"""Planning: tries changes with the placement code itself, on a copy of the cluster in memory. Pure: no I/O."""
