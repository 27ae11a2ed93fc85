"""Planning: tries changes with the placement code itself, on a copy of the cluster in memory.

remedies          single changes with which a waiting pod would fit
ranking           where else a pod could go, in the order of placement
capacity          how many more pods of a kind fit, and the fragmentation afterwards
reasons           why a pod waits, or why it is where it is
resize_plan       the result of other amounts for a placed pod
simulation        pods that arrive and end

Pure: no I/O.
"""
