"""What the operator knows: jobs, pods and nodes, read from caches. Nothing is decided or written here."""
