"""The admission webhook: chooses node and GPU for every pod that asks for a share, and rewrites the pod.

review            AdmissionReview v1 as the API server sends it, and the answers we may give
admission         review → denied, placed or gated
pods/             what a pod asks for, why it is denied, how it is rewritten; pure
store/            the ledger as this process sees it, and how a share gets into it
controllers/      keep the ledger true to the pods, and give gated pods their turn
placer            of all replicas the elected one: has the controllers work
certificates/     our TLS: made, rotated, shared by the replicas, registered
server            HTTPS; knows HTTP, knows no policy
webhook_settings  flags and environment → settings, validated once
metrics           what /metrics says
event_loop        how those with much to do let reviews be answered in between
*_process         one process, on a real cluster or on one in memory
"""
