"""Preemption: pods of lower priority are evicted for a gated pod that fits nowhere, if an administrator allows it.

preemptor      records whose place a pod takes, evicts, and adds that to the reasons of waiting pods
victim_finder  the fewest victims on a node
"""
