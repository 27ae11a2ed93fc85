"""`top`: a line per GPU, node or pod."""
