"""`ui`: the page with a tile per GPU: its data, the changes that keep it current, and the server."""
