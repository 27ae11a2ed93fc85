"""`cordon`: a GPU takes no new pods; those on it stay."""

from __future__ import annotations

from kubectl_gpushare import cordoning

command = cordoning.command(
    "cordon",
    """Let a GPU take no new pods; those on it stay.

    A GPU is named as NODE/INDEX, or by its UUID or the beginning of it. Needs the right to patch GPUNodes.

    \b
    Examples:
      # Nothing new on one card
      kubectl gpushare cordon gpu gpu-1/0
    \b
      # On two, but only ask whether that would be allowed
      kubectl gpushare cordon gpu gpu-1/0 gpu-1/1 --dry-run
    """,
    "Let a GPU take no new pods",
    cordoned=True,
)
