"""Job traces: files in several formats, read into rows. Nothing here knows a policy or a cluster."""
