"""What every long-running process of ours needs: logs, probes, and an end that is clean."""
