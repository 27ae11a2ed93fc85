"""Planning: what would happen, found by trying it with the placement code itself on a copy of the cluster in memory.

world             the copy: GPUNodes, and as far as they could be read Nodes and pods
remedies          the one change by which a pod that waits would fit
ranking           where else a pod could go, in the order in which placement would take it
capacity          how many more of a pod fit, and what fragmentation becomes
reasons           why a pod waits, or why it is where it is
evicting          which pods may be moved
resize_plan       what other amounts for a pod that was placed come to
defragmentation   the fewest moves by which a share fits that does not fit now
leaving           who would have to leave which GPUs for it
playing           the moves, tried in memory
cordons           GPUs that are kept free while they are made
simulation        pods that come and go

Pure: nothing is read and nothing is written here.
"""
