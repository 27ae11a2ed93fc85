"""Where a verb looks: the cluster, through kubectl, or saved files; and what it saw there, as a `Snapshot`."""
