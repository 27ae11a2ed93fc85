"""A replica of the webhook in a large cluster: what it takes to be there, and how long others wait for it."""
