"""The agent's end of the arbiter, which runs in a process of its own.

arbiter_process   starts that process, and ends it
arbiter           what is told to it, what it asks, and what it tells
running_shares    what it has told of the shares that have processes
lookup            what a container was given, asking the API server where the informers do not know yet
"""
