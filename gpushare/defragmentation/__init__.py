"""Defragmentation: which pods to move so that more fits, tried on the cluster in memory.

goals          what room is made for
evicting       which pods may be moved
cpu_only       which pods without a share hold the CPU of nodes with GPUs
leaving        which pods would have to leave which GPUs for a share
playing        the moves, tried in memory
fewest_moves   the fewest moves by which a share fits that does not fit now
clearing       CPU-only pods that leave nodes whose GPUs lack CPU
exchanges      chains of pods, each of which takes the place of the next
relocating     the moves that raise the value of the cluster most
emptying       nodes freed of all shares
plan           the result: steps and their moves
cordons        GPUs that are cordoned while the moves are made

Pure: no I/O.
"""
