"""Planner: a process of its own that finds which pods to move, so that the webhook's event loop answers meanwhile.

suggested_plan   what it finds, as JSON
reading          the cluster, as it lists it
process          runs it, beside the placer
__main__         one plan: what is asked on stdin, a suggestion on stdout
"""
