"""Preemption: pods of lower priority are evicted for a gated pod that fits nowhere, if an administrator allows it.

preemptor      records whose place a pod takes, evicts, and adds that to the reasons of waiting pods
victim_finder  what `gpushare.preemption` needs to know of pods and placement
"""
