"""`cordon`: a GPU takes no new pods; those on it stay."""

from __future__ import annotations

from kubectl_gpushare import cordoning

command = cordoning.command(
    "cordon",
    """Let a GPU take no new pods; those on it stay.

    A GPU is named NODE/INDEX, or by its UUID or a prefix of it. Needs permission to patch GPUNodes.

    \b
    Examples:
      # No new pods on one GPU
      kubectl gpushare cordon gpu gpu-1/0
    \b
      # Two GPUs, as a dry run of the API server
      kubectl gpushare cordon gpu gpu-1/0 gpu-1/1 --dry-run
    """,
    "Let a GPU take no new pods",
    cordoned=True,
)
