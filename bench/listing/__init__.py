"""Memory and time of a webhook replica that lists very many pods; see `__main__`."""
