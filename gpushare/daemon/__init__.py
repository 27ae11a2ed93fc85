"""The parts that every long-running process here shares: logs, probes, certificates, garbage collection, and a clean
exit.
"""
