"""Demand pods: pods that the scheduler cannot bind, so that an autoscaler starts the nodes that gated pods lack.

demand_controller  keeps as many as the packing says, and adds to the reasons of waiting pods what is asked for
demand_kinds       which kinds of GPU a new node could have, and on which nodes a demand pod would be bound already
demand_pods        packing and existing pods → what to create and delete; pure
"""
