"""Puts the agent together: four modules that build its parts and list the loops to start.

node_parts      the copies of the cluster's objects, and the GPUs
share_parts     the connection to the arbiter, and the audit
kubelet_parts   the device plugins
agent_parts     reports, modes, and all groups together
"""
