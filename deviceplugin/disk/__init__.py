"""What the agent has on the host's disk.

whole_file, records       files that are there whole or not at all, and values in them
library, old_libraries    what share containers get mounted, and what nobody has any more
"""
