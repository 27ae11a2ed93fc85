"""Denies the GPU's device files to processes of share containers that are not registered with the arbiter.

This is an option, off by default (`--deny-unregistered`). Whenever a process in the cgroup of such a pod opens a device
file, by any path, the kernel runs a small program that looks the process up in a map.

program     the instructions of that program, and where this kernel has the fields that it reads; pure
kernel      the system call bpf(2), and the map of registered processes, which the arbiter writes
pod_denial  loads the program, attaches it to the cgroups of pods, and reports the condition
"""
