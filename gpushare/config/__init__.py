"""The node's configuration: how an admin wants the GPUs of a node to be shared.

The file has the format of NVIDIA's device plugin, version v1 (https://github.com/NVIDIA/k8s-device-plugin), and the
additional keys `sharing.fractional` and `mig`.

yaml_tree       parses YAML into a tree that knows line numbers
config_file     parses a file into a `Config`, or raises one error with line and key
file_keys, durations, names, references   parsers of parts of the file
model           `Config` and its parts
writing         writes a `Config` as the data of a file
flags           every flag: its key in the file, option, environment variable and default
node_settings   the effective flags, checked (`checks`)
restrictions    drops what NVIDIA's own binary ignores in a file
config_choice   chooses the entry of a ConfigMap that a node follows
"""
