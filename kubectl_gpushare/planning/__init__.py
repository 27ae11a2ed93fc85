"""Planning: what would happen, tried with the placement code itself on a copy of the cluster in memory.

world             the copy: GPUNodes, and the Nodes and pods that could be read
remedies          the one change by which a pod that waits would fit
ranking           where else a pod could go, in the order in which placement would take it
capacity          how many more of a pod fit, and what fragmentation becomes
reasons           why a pod waits, or why it is where it is
evicting          which pods may be moved
resize_plan       what other amounts for a placed pod would change
defragmentation   the fewest moves by which a share fits that does not fit now
leaving           which pods would have to leave which GPUs for it
playing           the moves, tried in memory
cordons           GPUs that are cordoned while the moves are made
simulation        pods that come and go

Pure: no I/O.
"""
