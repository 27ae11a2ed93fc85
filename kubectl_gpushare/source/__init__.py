"""Where objects are read from: the cluster, through kubectl, or saved files; and what was read, as a `Snapshot`."""
