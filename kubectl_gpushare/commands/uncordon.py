"""`uncordon`: a GPU takes new pods again."""

from __future__ import annotations

from kubectl_gpushare import cordoning

command = cordoning.command(
    "uncordon",
    """Let a GPU take new pods again.

    A GPU is named as NODE/INDEX, or by its UUID or the beginning of it. Needs the right to patch GPUNodes.

    \b
    Examples:
      # One card is back in service
      kubectl gpushare uncordon gpu gpu-1/0
    \b
      # Named by the beginning of its UUID
      kubectl gpushare uncordon gpu GPU-6770752d31-0000
    """,
    "Let a GPU take new pods again",
    cordoned=False,
)
