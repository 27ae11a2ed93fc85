"""The labels of a GPU node, named and valued as those of NVIDIA's GPU Feature Discovery.

words           values of labels: model, family, mode, versions
gpu_resources   labels of a resource: count, replicas, memory, product, MIG attributes
whole           all labels of a node
writer          puts them on the Node, and takes ours away again
"""
