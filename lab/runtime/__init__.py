"""The simulated NVIDIA container runtime, run by containerd for each container."""
