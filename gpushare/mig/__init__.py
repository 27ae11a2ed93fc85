"""MIG without a GPU: what profiles are called, how large they are, which of them fit together and where.

profile           1c.3g.40gb+me as a value, and how NVIDIA makes the name from sizes
catalogue         which profiles each model of GPU has, with sizes, places and numbers
instance_layout   placements: which instances fit together, in which order to make them, and what fits when they do
                  not
device_id         PCI numbers of a model, as mig-parted's filters write them
parted            the file format of mig-parted: read, checked, generated
"""
