"""`ui`: the page with a tile per GPU; what it shows, how it stays current, and its server."""
