"""Experiments on a local control plane: chaos, race and fuzz, and the load they share."""
