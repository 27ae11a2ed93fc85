"""kubectl gpushare: who shares which GPU, with what, and what still fits.

Commands are `fetch → view → print`. Fetching is `snapshot` over one of two sources: the cluster, through kubectl itself
(`cluster`), or saved files (`files`). Views are pure. Printing is `output` for lists and `report` for descriptions.
"""
