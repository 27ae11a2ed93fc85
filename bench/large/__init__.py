"""A webhook replica in a large cluster: its resources, and how long clients wait for it."""
