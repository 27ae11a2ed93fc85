"""The admission webhook: chooses node and GPU for every pod that asks for a share, and rewrites the pod.

review        AdmissionReview v1 as the API server sends it, and the answers we may give
validation    pod → why it is denied, or None; pure
mutation      pod and placement → the rewritten pod, and the patch that makes it so; pure and idempotent
reinvocation  whether a pod already holds a reservation of its own; pure
admission     the above in order: review → answer
store         the ledger as this process sees it, and how it is changed
reservation   place, then write the allocation, until both agree
api_store     the store on the API server: informers, and one writer a node that shares its writes
memory_store  the store in memory: a cluster read from a file
bookkeeping   pods and ledger → what to confirm, release and expire; pure
queue         which gated pod is next, and what may be skipped; pure
placer        the elected one: keeps the books, and places gated pods
certificates  what certificates there should be (pure), and how they are made
keeper        certificates in a Secret that the replicas share, loaded into the live TLS context
registration  our CA in the MutatingWebhookConfiguration
server        HTTPS; knows HTTP, knows no policy
settings      flags and environment → settings, validated once
metrics       what /metrics says
"""
