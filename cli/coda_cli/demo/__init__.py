"""`coda demo`: the example jobs on a local control plane."""
