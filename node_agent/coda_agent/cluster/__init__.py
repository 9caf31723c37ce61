"""What the agent reads from the API server about its node, and writes to it in the background."""
