"""How containers on this node get their devices: from the environment by NVIDIA's runtime, or by CDI.

runtime_inspection  finds out what the node's runtime does
decision            decides from that and the configuration, and explains it in the condition DevicesInjected
driver_root         where the host's driver is, and which of its files belong in a container
cdi_specs           the CDI specification files of this node, which describe devices to container runtimes
arrival             checks whether devices have arrived in running containers
"""
