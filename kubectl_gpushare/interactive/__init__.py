"""`top -i`: the cluster as a tree in a terminal. Only this package imports textual, and only `top -i` imports it."""
