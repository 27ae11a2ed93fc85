"""The agent's shared values: facts that its components publish, follow and compare. Nothing here starts a loop."""
