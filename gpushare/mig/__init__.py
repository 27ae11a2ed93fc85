"""MIG without a GPU: the names and sizes of profiles, and which instances fit together and where.

profile           1c.3g.40gb+me as a value, and how NVIDIA makes the name from sizes
catalogue         the profiles of each GPU model, with sizes, placements and IDs
instance_layout   placements: which instances fit together, in which order to create them, and the largest parts of a
                  request that does not fit
geometry          how a GPU can be partitioned; feasibility: whether it can have the configured instances
device_id         PCI IDs of a model, as mig-parted's filters write them
parted            the file format of mig-parted, read and checked; generation: the configs for any node
"""
