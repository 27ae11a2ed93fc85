"""A real Kubernetes on one machine, for tests and demos: etcd, API server, scheduler, controller manager, kubelet, containerd.

Everything is the released software; only the GPUs below it are simulated. It needs no image registry, no Docker and no
systemd, keeps all it has in one directory, listens on loopback addresses of its own and leaves nothing behind.
"""
