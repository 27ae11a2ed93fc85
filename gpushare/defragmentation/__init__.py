"""Defragmentation: which pods to move so that more fits, simulated on the cluster in memory.

evicting     which pods may be moved
cordons      temporary cordons while pods move
leaving      the pods that would have to leave their GPUs for a share to fit
moves        plans: steps and their moves; MoveSimulator makes moves on the cluster in memory
goals        plans by goal: room for given pods, the largest hole, empty nodes
relocating   plans by value: chains of moves that promise a gain, and those that yield most

Pure: no I/O.
"""
