"""Imports all modules of a package and everything they import, inside functions too; prints their names.

Further arguments are packages that need an extra, and are left out.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
import sys
from pathlib import Path

ours = {"gpushare", sys.argv[1]}
extras = tuple(f"{package}." for package in sys.argv[2:])
top = importlib.import_module(sys.argv[1])
todo = [module.name for module in pkgutil.walk_packages(top.__path__, sys.argv[1] + ".")]
seen: set[str] = set()
while todo:
    name = todo.pop()
    if name in seen or name.split(".")[0] in {"kubernetes_asyncio", "__future__"} or f"{name}.".startswith(extras):
        continue
    seen.add(name)
    module = importlib.import_module(name)
    print(name)
    if name.split(".")[0] not in ours:
        continue
    for node in ast.walk(ast.parse(Path(module.__file__ or "").read_text())):
        if isinstance(node, ast.Import):
            todo += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            todo.append(node.module)
            if node.module.split(".")[0] in ours and hasattr(importlib.import_module(node.module), "__path__"):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                todo += filter(importlib.util.find_spec, names)
