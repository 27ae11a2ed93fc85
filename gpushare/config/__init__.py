"""The node's configuration: how an administrator wants the GPUs of a node to be shared.

The file is that of NVIDIA's device plugin, version v1 (https://github.com/NVIDIA/k8s-device-plugin), plus
`sharing.fractional` and `mig`.

yaml_tree       a text as a tree that knows its lines
config_file     a text as a `Config`, or one error with line and key
value_parsers   durations, resource names, and references to devices
model           Config and its parts, and a `Config` as the data of a file
flags           every flag: in the file, on the command line, in the environment, by default
node_settings   the flags in force, validated, and how NVIDIA's own binary acts on a file
config_choice   the entry of a ConfigMap that a node follows
"""
