"""The GPU's device files are denied to processes of share containers that are not registered with the arbiter.

An option, off by default (`--deny-unregistered`). The kernel asks a small program of ours whenever a process in the
cgroup of such a pod opens a device file, by whatever path, and it looks the process up among those that are registered.

kernel_fields   where this kernel has the fields of its structures; pure
program         the program itself; pure
kernel          the system call bpf(2)
registered      who is registered, as the arbiter tells the kernel
pod_cgroups     the cgroups of pods
denial          the program in the kernel, from one agent to the next
denied_pods     which pods it is for; pure
covering        who has it attached, and says so
"""
