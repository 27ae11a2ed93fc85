"""The controllers: what the elected replica does, round by round, to keep the ledger true (see `webhook.placer`).

allocations/        confirms, releases and lets lapse: an allocation is kept while its pod lives
restore             opens new GPUNodes, and writes again the shares of living pods that the ledger has lost
inspection          says what in the ledger is invalid
resize/             gives pods that hold a share and ask for another amount their turn
gated_pods/         places gated pods in order, and opens their gates
unschedulable_pods  placed, and of no use where they are: whom to evict, and when; pure. evictor: tells and evicts them

What they share:

queue               who is next, and who need not be tried; pure
pending_reasons     tells pods why they wait
touched_nodes       which nodes a round has to look at again, and with which pods; pure
write_backoff       when that is tried again which the API server did not let us write; pure
cluster_figures     what Prometheus is told of all GPUs
profile_publisher   tells the plugin by what the webhook chooses
"""
