"""How containers of this node get their devices: by NVIDIA's runtime from the environment, or by CDI.

injection_facts      what an agent can see of it
runtime_inspection   sees it: mounts, environment, the runtime's configuration
containerd that configuration
decision   facts and configuration → how devices are given, and the condition DevicesInjected
arrival    whether devices have come into the containers
in_force   what is in force on the node, with that in it
"""
