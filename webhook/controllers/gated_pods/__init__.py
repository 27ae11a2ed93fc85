"""Gated pods get their turn.

pod_index              which pods there is something to do about; pure
fairness               whose turn it is among namespaces, and how many are tried; pure
gang                   pods that are placed whole or not at all; pure
gang_nodes             where they go so that they are near each other
gang_reservation       tries the shares of a gang on a draft, writes them, and settles them
existing_allocations   what gated pods have in the ledger already; pure
backfill               how long a unit may be passed over; pure
backfill_reservations  what is then kept free for it
gated_pods             places units in order, as far as there is room
gates                  opens the gates of those that are placed
"""
