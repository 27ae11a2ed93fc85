"""`audit`: a line for everything without a limit in force, or for every container; and a summary."""
