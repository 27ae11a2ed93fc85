"""Defragmentation: which pods to move so that more fits, simulated on the cluster in memory.

goals            the pods or capacity to make room for; nodes to empty
evicting         which pods may be moved; whether a moved pod has been replaced
cpu_only         pods without a share that hold the CPU of nodes with GPUs
leaving          the pods that would have to leave their GPUs for a share to fit
move_simulator   moves, made on the cluster in memory
fewest_moves     the fewest moves that make a share fit
exchanges        chains of pods, each of which takes the place of the next
openings         several pods that leave a node together
relocating       the moves that raise the value of the cluster most
plan             the result: steps and their moves
cordons          temporary cordons while pods move

Pure: no I/O.
"""
