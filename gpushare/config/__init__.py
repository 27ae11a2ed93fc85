"""The node's configuration: what an admin writes about how the GPUs of a node are shared.

The file is that of NVIDIA's device plugin, version v1 (https://github.com/NVIDIA/k8s-device-plugin), with more in it:
`sharing.fractional` and `mig`.

yaml_tree       a text as a tree that knows lines
config_file     a text as a `Config`, or one error with line and key; fields, durations, names, references: parts of
                it
model           Config and what is in it
writing         a `Config` as the data of a file
flags           every flag: in the file, on the command line, in the environment, by default
node_settings   the flags in force, checked (checks)
restrictions    what NVIDIA's own binary makes of a file
config_choice   which entry of a ConfigMap a node follows
"""
