"""What the agent knows of its node: values that its parts publish, follow and compare. Nothing here starts anything."""
