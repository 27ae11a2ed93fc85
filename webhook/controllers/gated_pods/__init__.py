"""The scheduler of gated pods.

gated_pods             places units in order while there is room, and reports why the others wait
waiting_units          pods that are placed together or not at all, and what they have in the ledger already; pure
ungater                removes our scheduling gate from pods that are placed
gang_placement         which nodes a gang goes to, and how all of its pods get their shares, or none
fairness               whose turn it is, and how often a unit may be overtaken; pure
backfill_reservations  keep freed capacity for units that were overtaken too often
"""
