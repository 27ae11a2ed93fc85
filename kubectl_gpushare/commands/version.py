"""`version`."""

from __future__ import annotations

import click

import gpushare


@click.command(short_help="Print the version of the plugin")
def command() -> None:
    """Print the version of the plugin."""
    print(f"kubectl-gpushare v{gpushare.__version__}")
