"""The agent's own files on its node: bounded reads, a state directory, the undo journal."""
