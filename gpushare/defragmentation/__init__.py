"""Defragmentation: which pods to move so that more fits, simulated on the cluster in memory.

evicting     which pods may be moved; whether a moved pod has been replaced
cordons      temporary cordons while pods move
leaving      the pods that would have to leave their GPUs for a share to fit
moves        plans: steps and their moves; MoveSimulator makes moves on the cluster in memory
goals        plans by goal: room for given pods, the largest hole, empty nodes
chains       chains of moves, and their expected gain
relocating   the moves that raise the value of the cluster most

Pure: no I/O.
"""
