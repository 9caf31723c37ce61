"""What the agent tells: its NodeProfile, events and metrics."""
