"""Brings each GPU to the mode that the configuration wants, as soon as nobody uses it.

configuration, wishes, choosing  which configuration that is, and what it says; what cannot be is told
witness, usage                   who uses a GPU
transition                       what is to be closed and changed next; pure
setup, mig_part                  what has to be done to a GPU for that
entering                         whether it was done
book                             what is in force, on disk
presenting, statement            the same for those who follow it; pure
surroundings, cluster_view       what the loop is connected to
applying                         the loop
"""
