"""kubectl gpushare: shows who shares which GPU, with which amounts, and what else fits.

Commands are `fetch → view → print`:

start      the entry point
commands   a module for each verb, imported when it is called
source     the cluster, through kubectl, or saved files; a `Snapshot` is one reading
planning   what would happen, tried in memory with the placement code
views      tables, pages and documents as values
output     their printing: terminal, pipe, JSON, YAML, CSV

`views` and `planning` are pure; only `cordoning`, `moving` and `config_writing` write to the cluster.
"""
