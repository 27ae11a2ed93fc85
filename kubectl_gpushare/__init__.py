"""kubectl gpushare: who shares which GPU, with what, and what still fits.

Commands are `fetch → view → print`:

start      asks kubectl early and imports the command line then
commands   a module for each verb, imported when it is called
source     where from: the cluster, through kubectl itself, or saved files; what was seen is a `Snapshot`
planning   what would happen, tried in memory with the placement code
views      what is shown, as tables, pages and documents
output     how: terminal, pipe, JSON, YAML, CSV

`views` and `planning` are pure; what writes to the cluster is `cordoning` and `moving` alone.
"""
