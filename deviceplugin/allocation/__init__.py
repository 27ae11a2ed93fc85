"""What the kubelet asks before a container starts: which devices would be best, may it have these, what does it get.

greedy                the best of shared devices: by how many of each GPU are given out
aligned               the best of whole GPUs: by how they are joined
joined                how well the GPUs of a node are joined
preference            which of the two, and the answer
refusing_containers   what is refused
answer                environment, mounts, device nodes and CDI names of a container
cdi                   the names of CDI
"""
