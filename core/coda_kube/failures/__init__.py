"""Failures as the objects of a cluster have them: from their JSON to what `coda.correlation` compares, and back."""
