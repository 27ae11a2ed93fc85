"""How containers on this node get their devices: from the environment by NVIDIA's runtime, or by CDI.

runtime_inspection   finds out what the node's runtime does
decision             decides from that and the configuration, and explains it in the condition DevicesInjected; pure
in_force             the settings in force, with that decision
arrival              checks whether devices have arrived in running containers
"""
