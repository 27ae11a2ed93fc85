"""A real Kubernetes on one machine, for tests and demos.

Etcd, API server, scheduler, controller manager, kubelet and containerd: everything is the released software, and only
the GPUs below it are simulated. It needs no image registry, no Docker and no systemd, keeps all it has in one
directory, listens on loopback addresses of its own and leaves nothing behind.
"""
