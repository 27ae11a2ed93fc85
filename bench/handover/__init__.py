"""The time in which a lease passes from one share to the next while the agent lists a cluster's pods."""
