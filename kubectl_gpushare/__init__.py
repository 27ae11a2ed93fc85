"""kubectl gpushare: shows which pods share which GPU, with which amounts, and what else fits.

`cli` imports the verb's module in `commands`, which fetches from a `source` (the cluster, through kubectl, or saved
files), makes `views`, and prints them by `output`. `planning` tries in memory, with the placement code, what would
happen. `views` and `planning` are pure. Only the verbs `config`, `cordon`, `uncordon`, `defrag --apply` and `resize`
write to the cluster.
"""
