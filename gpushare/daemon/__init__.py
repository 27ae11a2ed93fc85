"""The basics of every long-running process of gpushare: logs, probes, and a clean shutdown."""
