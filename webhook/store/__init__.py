"""The ledger as this process sees it, and how a share gets into it. `gpushare.ledger` has the rules.

ledger_store           the interface of every store
api_store              the store on the API server: a cache kept by informers
gpunode_writer         writes pending changes, with one writer per GPUNode
node_ledger            one GPUNode: as stored, with pending changes, and the next write
deleted_nodes          allocations of deleted GPUNodes, and which GPUNodes are closed; pure
memory_store           the store in memory
derived_store          a scratch copy of a store, or a store without some allocations
reservation            places a pod and writes its allocation
reservation_limits     why nothing is reserved before a pod is stored
backfill_reservation   allocations that keep freed capacity for an overtaken pod; pure

Which node and GPUs a pod gets:

chooser                the placement engine on the ledger and on stores derived from it
occupancy              which pods and volumes are on which node
assumed_pods           pods that were placed a moment ago, and not seen yet
workload_mix           the requests of pods with a share, and when placement learns them; pure
contention             nodes that are left to other replicas for a while; pure
unbindable             nodes where the scheduler could not bind an owner's pods; pure
"""
