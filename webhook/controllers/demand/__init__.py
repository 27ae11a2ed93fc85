"""Demand pods: pods that the scheduler cannot bind, so that an autoscaler starts the nodes that gated pods lack.

demand_controller      keeps as many as the packing says, and adds to the reasons of waiting pods what is asked for
demand_kinds           the kinds of GPU that a new node could have, and where a demand pod would be bound
demand_pods            packing and existing pods → what to create and delete; pure
gang_demand            what a gang asks for, and whether its request is still of use; pure
provisioning_requests  one request for all nodes of a gang, where the autoscaler has that
"""
