"""Syntaxes: requests for a share of a GPU as other sharers write them, and their equivalents in gpushare. Pure.

translation     pod → the pod with gpushare's annotations instead, or why it has no equivalent
spelling        how a pod is recognised, the shares that it asks for, and gpushare's annotations for them

Each other module is one sharer's syntax: its marks, and a function that reads a pod that bears them.
"""
