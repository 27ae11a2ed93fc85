"""What the kernel says about processes and containers, in /proc and cgroups. For agent and arbiter."""
