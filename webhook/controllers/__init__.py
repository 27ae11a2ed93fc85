"""The controllers: the elected replica runs them in rounds to keep the ledger in line with the pods; see `placer`.

allocation_controller  confirms, releases and expires, with one write per node: an allocation lasts as long as its pod
due_changes            pods and ledger → what to confirm, release and expire, and when to write it; pure
restore                opens new GPUNodes, and restores shares of living pods that the ledger has lost
resizer                gives pods that change their request another amount, within the quotas of their namespace
resize_requests        which pods request another amount, in which order, and the next step of each; pure
gated_pods/            places gated pods in order, and ungates them
demand/                asks an autoscaler for the nodes that gated pods lack
evictor                reports pods that cannot use their placement, and evicts those that are recreated
leader_reports         the cluster's GPUs for Prometheus

Shared by them:

pending_reasons        writes on pods why they wait
queue                  the order of waiting pods, and which of them are alike; pure
touched_nodes          which nodes a round has to check again, and with which pods; pure
pacing                 pauses: for reviews during long work, and after rejected writes
"""
