"""Memory limits that the driver keeps, for GPUs whose `memoryEnforcement` is `driver`.

plan      which hard limit each cgroup should have on each GPU, and whether it has it; pure
enforcer  sets the limits, reads them back and clears them: at a pod's start, at the first message of a container's
          process, at a resize, and every few seconds
"""
