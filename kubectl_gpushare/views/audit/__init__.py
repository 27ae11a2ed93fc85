"""`audit`: what is not held to a limit, a line each, or the proof of every container; and a sentence that sums up."""
