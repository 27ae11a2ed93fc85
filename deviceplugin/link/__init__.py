"""The agent's end of the channel to the arbiter, which is a separate process.

arbiter_process   starts and stops the arbiter
arbiter           sends the arbiter allocations and measurements, and answers its questions
running_shares    the shares with processes, as the arbiter reported them
lookup            finds a container's share; asks the API server if the informers do not know it yet
"""
