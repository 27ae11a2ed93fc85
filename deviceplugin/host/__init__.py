"""The host: what /proc and cgroups say about processes and containers, for agent and arbiter, and the agent's files.

kernel_process  a process: the peer of a socket, its life, container, mappings and capabilities
cgroups         the cgroups of pods and containers
records         dataclasses as JSON, and atomic writes
library         installs the library that share containers mount, and removes it when it is no longer used
"""
