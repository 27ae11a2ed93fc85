"""The scheduler of gated pods.

gated_pods             places units in order while there is room, and reports why the others wait
ungater                removes our scheduling gate from pods that are placed
gang                   groups pods into units that are placed together or not at all; pure
gang_placement         which nodes a gang goes to, and how all of its pods get their shares, or none
fairness               whose turn it is, and how often a unit may be overtaken; pure
backfill_reservations  keep freed capacity for units that were overtaken too often
existing_allocations   what gated pods already have in the ledger; pure
pod_index              the pods that a round has work for; pure
"""
