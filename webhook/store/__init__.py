"""The ledger as this process sees it, and how a share gets into it. `gpushare.ledger` has the rules.

Upper modules import lower ones:

reservation            places a pod and writes its allocation
api_store              the ledger on the API server: a cache kept by informers
memory_store           the ledger in memory
gpunode_writer         writes pending changes, with one writer per GPUNode
node_ledger            one GPUNode: as stored, with pending changes, and the next write; allocations of deleted GPUNodes
backfill_reservation   allocations that keep freed capacity for an overtaken pod; pure
ledger_store           the interface of every ledger; a scratch copy of one, and one without some allocations
reservation_limits     why nothing is reserved before a pod is stored
occupancy              which pods and volumes are on which node, or were placed there a moment ago
shared_profile         the mix of requests that all replicas use: the one in the ConfigMap, which the leader renews
chooser                the placement engine on a ledger, and when to learn the mix of requests again
avoided_nodes          nodes left to other replicas, and nodes where an owner's pods could not be bound; pure
"""
