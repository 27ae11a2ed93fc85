"""The ledger as this process sees it, and how a share gets into it. The rules themselves are `gpushare.ledger`.

ledger_store           what every store of the ledger can do
api_store              the store on the API server: informers, and one writer a node that shares its writes
node_ledger            one GPUNode: stored, waiting for the next write, and as both together show it
deleted_nodes          what was on GPUNodes that went, for those made in their place, and which are closed; pure
memory_store           the store in memory: a cluster read from a file
draft                  the ledger as it would be after some changes, or without some shares
reservation            place, then write the allocation, until both agree
reinvocation           whether a pod already holds a reservation of its own; pure
backfill_reservation   allocations that keep free what an older pod waits for; pure

Which node and GPUs a pod gets:

chooser                one engine for whoever asks, of the ledger and of a draft of it
occupancy              which pods are on which node; assumed_pods: placed a moment ago, and not yet seen
storage                claims and volumes, and what a node can attach of them
workload_mix           what the pods that hold shares have asked for, and when placement learns it; pure
contention             nodes left to the other replicas for now; pure
unbindable             nodes where the scheduler could not bind pods, by who made these; pure
allowances             what the ResourceQuotas leave
unconfirmed            reservations whose pods have not come; pure
"""
