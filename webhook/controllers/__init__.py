"""The controllers: the elected replica runs them in rounds to keep the ledger in line with the pods; see `placer`.

allocations/       confirms, releases and expires: an allocation lasts as long as its pod
restore            opens new GPUNodes, and restores shares of living pods that the ledger has lost
resize/            gives pods that change their request another amount
gated_pods/        places gated pods in order, and ungates them
evictor            reports pods that cannot use their placement, and evicts those that are recreated
leader_reports     the cluster's GPUs for Prometheus, the placement profile for the plugin

Shared by them:

queue              the order of waiting pods, and which of them are alike; pure
pending_reasons    writes on pods why they wait
touched_nodes      which nodes a round has to check again, and with which pods; pure
write_backoff      when to retry writes that the API server rejected; pure
"""
