"""The admission webhook: chooses node and GPU for each pod that requests a share, and rewrites the pod.

review            AdmissionReview v1: requests of the API server, and the responses we may give
admission         review → denied, placed or gated
pods/             what a pod requests, why it is denied, how it is rewritten; pure
store/            the ledger as this process sees it, and how a share gets into it
controllers/      keep the ledger in line with the pods, and place gated pods
placer            runs the controllers in the elected replica
certificates/     TLS certificates: issued, rotated, shared by the replicas, registered
server            HTTPS, without any policy
bounds, connections   limits of what clients can use
webhook_settings  flags and environment → settings, validated once
metrics           the metrics of /metrics
cluster_process   one process on a real cluster
memory_cluster    one process on a cluster in memory
"""
