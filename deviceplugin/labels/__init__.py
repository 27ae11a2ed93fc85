"""The labels of a GPU node, with the names and values of NVIDIA's GPU Feature Discovery.

label_values   values of labels: family, mode, versions
gpu_labels     the labels that describe a node's GPUs; pure
node_labels    reads what the labels need, and keeps them on the Node
"""
