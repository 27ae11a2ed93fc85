"""What a list of very many pods costs a webhook replica in memory and in time; see `__main__`."""
