"""A real Kubernetes on one machine, for tests and demos.

Etcd, API server, scheduler, controller manager, kubelet and containerd are the released software; only the GPUs are
simulated. The lab needs no image registry, no Docker and no systemd. It keeps everything in one directory, listens on
separate loopback addresses, and removes all its files when it ends.

cluster                 starts and stops a lab; guard: stops it when its owner ends
lab_layout, addresses   its directory; its addresses and ports
component               a daemon with its readiness probe; daemon_process: its process
control_plane           etcd, API server, scheduler, controller manager; api_server_files: configuration
lab_nodes               the nodes: kubelet, containerd, oci_runtime and runtime/, node_cgroup, node_mounts
network                 the pods' network; kubernetes_service: the Service `kubernetes`
access                  kubectl and API requests; raw_api, pod_exec, kubeconfig, certificates
gpushare                installs gpushare; image: the lab's own images
build                   Kubernetes and Go tools, built from source; go_build: how
prerequisites           Debian packages; unpacked, components: those that are not installed
status                  `status` and `env`; api_audit: requests by gpushare
demo                    the webhook without a cluster
lab_errors              LabError
"""
