"""What the kernel says of processes and containers, read from /proc and cgroups; for the agent and the arbiter."""
