"""A real Kubernetes on one machine, for tests and demos.

Etcd, API server, scheduler, controller manager, kubelet and containerd are the released software; only the GPUs are
simulated. The lab needs no image registry, no Docker and no systemd. It keeps everything in one directory, listens on
separate loopback addresses, and removes all its files when it ends.
"""
