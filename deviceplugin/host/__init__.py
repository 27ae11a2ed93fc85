"""Reads what /proc and cgroups say about processes and containers, for agent and arbiter."""
