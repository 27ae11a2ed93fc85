"""The Container Device Interface: files that describe devices to container runtimes.

driver_root   where the host's driver is, and which of its files belong in a container
specs         the specification files of this node
"""
