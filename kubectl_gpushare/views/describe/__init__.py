"""`describe`: one node, GPU or pod as a page."""
