"""The basics of every long-running process of gpushare: its lifecycle and logs, probes, certificates."""
