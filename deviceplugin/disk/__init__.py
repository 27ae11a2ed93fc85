"""The agent's files on the host's disk.

whole_file      atomic writes
records         dataclasses as JSON
library         installs the library that share containers mount
old_libraries   removes libraries that are no longer used
"""
