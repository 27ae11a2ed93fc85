"""Planning: what would happen, tried with the placement code itself on a copy of the cluster in memory.

remedies          the one change by which a pod that waits would fit
ranking           where else a pod could go, in the order in which placement would take it
capacity          how many more of a pod fit, and what fragmentation becomes
reasons           why a pod waits, or why it is where it is
resize_plan       what other amounts for a placed pod would change
simulation        pods that come and go

Pure: no I/O.
"""
