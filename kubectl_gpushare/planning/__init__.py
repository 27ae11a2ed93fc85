"""Planning: tries changes with the placement code itself, on a copy of the cluster in memory.

remedies          the one change by which a waiting pod would fit
ranking           where else a pod could go, in the order of placement
capacity          how many more of a pod fit, and the fragmentation afterwards
reasons           why a pod waits, or why it is where it is
resize_plan       what other amounts for a placed pod would change
simulation        pods that come and go

Pure: no I/O.
"""
