"""`uncordon`: a GPU takes new pods again."""

from __future__ import annotations

from kubectl_gpushare import cordoning

command = cordoning.command(
    "uncordon",
    """Allow new pods on a GPU again.

    A GPU is named as NODE/INDEX, or by its UUID or the beginning of it; `node` means all GPUs of a node. Needs
    permission to patch GPUNodes.

    \b
    Examples:
      # One GPU is back in service
      kubectl gpushare uncordon gpu gpu-1/0
    \b
      # Named by the beginning of its UUID
      kubectl gpushare uncordon gpu GPU-6770752d31-0000
    """,
    "Allow new pods on a GPU again",
    cordoned=False,
)
