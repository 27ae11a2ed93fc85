"""Demand pods: pods that the scheduler cannot bind, so that an autoscaler starts the nodes that gated pods lack.

demand_controller  keeps as many as the packing says, and adds to the reasons of waiting pods what is asked for
demand_kinds       which kinds of GPU a new node could have, which did not help, and where a demand pod would be bound
demand_pods        packing and existing pods → what to create and delete; pure
"""
