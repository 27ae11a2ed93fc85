"""`cordon`: a GPU takes no new pods; those on it stay."""

from __future__ import annotations

from kubectl_gpushare import cordoning

command = cordoning.command(
    "cordon",
    """Keep new pods off a GPU; those on it stay.

    A GPU is named as NODE/INDEX, or by its UUID or the beginning of it; `node` means all GPUs of a node, which still
    takes other pods (`kubectl cordon` keeps those off). The GPUNode records who cordoned a GPU, when and why. Needs
    permission to patch GPUNodes.

    \b
    Examples:
      # Keep new pods off one GPU
      kubectl gpushare cordon gpu gpu-1/0 --reason "ECC errors, ticket 4711"
    \b
      # Keep new pods off all GPUs of a node
      kubectl gpushare cordon node gpu-1
    \b
      # Check whether you may cordon two GPUs, and change nothing
      kubectl gpushare cordon gpu gpu-1/0 gpu-1/1 --dry-run
    """,
    "Keep new pods off a GPU",
    cordoned=True,
)
