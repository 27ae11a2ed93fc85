"""MIG without a GPU: the names and sizes of profiles, and which instances fit together and where.

profile           1c.3g.40gb+me as a value, and how NVIDIA makes the name from sizes
parted            the file format of mig-parted, read and checked, and the configs that any node can have
instance_layout   how a GPU can be partitioned: which instances fit together, and in which order to create them
catalogue         the geometry of each GPU model, to check a configuration without the GPU
"""
