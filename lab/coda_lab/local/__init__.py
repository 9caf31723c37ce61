"""The local control plane: its parts, how they start, restart and end."""
