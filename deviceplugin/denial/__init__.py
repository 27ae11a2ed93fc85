"""Denies the GPU's device files to processes of share containers that are not registered with the arbiter.

This is an option, off by default (`--deny-unregistered`). Whenever a process in the cgroup of such a pod opens a device
file, by whatever path, the kernel runs a small program of ours, which looks the process up in a map.

  program         the instructions of that program, and where this kernel has the fields that it reads; pure
  kernel          the system call bpf(2)
  registered      the map of registered processes, which the arbiter writes
  denial_program  loads the program, hands it on to the next agent, and attaches it to cgroups
  pod_denial      chooses the pods, attaches the program to them, and reports the condition
"""
