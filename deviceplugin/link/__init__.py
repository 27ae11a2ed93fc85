"""The agent's end of the channel to the arbiter, which is a separate process.

arbiter       starts the arbiter, sends it allocations and measurements, and answers its questions
node_shares   finds a container's share, and knows the shares with processes
"""
