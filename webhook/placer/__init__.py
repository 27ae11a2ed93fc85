"""The placer: of all replicas the elected one gives gated pods their turn.

placer                 leads; wakes whenever something has changed
index                  which pods a round looks at; pure
queue                  who is next, and who need not be tried; pure
fairness               whose turn it is among namespaces, and how many are tried; pure
gang                   pods that are placed whole or not at all; pure
backfill               how long a unit may be passed over; backfill_reservations: what is then kept free for it
existing_allocations   what gated pods have in the ledger already
gated_pods             places units in order, as far as there is room
gates                  opens the gates of those that are placed
pending_reasons        tells the others why they wait
write_backoff          when that is tried again which the API server did not let us write; pure
resizer                gives those that hold a share and ask for another amount their turn
resize_requests        which these are, and in which order; pure; quotas: which of them may not grow
unschedulable_pods     placed, and the scheduler cannot bind them
profile_publisher      tells the plugin by what the webhook chooses
allocation_conflict    placed, and somebody else holds what they name; evictor: has both recreated where somebody
                       does
"""
