"""How long a lease takes from one share to the next, while the agent lists the pods of a cluster."""
