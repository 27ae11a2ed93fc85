"""MIG without a GPU: the names and sizes of profiles, and which of them fit together. Pure.

profile           a profile such as 1c.3g.40gb+me as a value, and its name by sizes
geometry          how one model of GPU can be partitioned
catalogue         the geometry of each known model
feasibility       whether a GPU can have the instances of a config
instance_layout   which instances fit together and where, and what fits if they do not
orders            the orders in which to create instances
device_id         PCI numbers of a model, as in mig-parted's filters
parted            the entries of a mig-parted config
generation        the configs that any node can have, by mig-parted's names
"""
