"""What one replica knows of the cluster, from watches. Nothing is decided here; nothing is asked of the API server but
lists and watches. Read `cluster`, then `ending_gangs` and `use_metrics`."""
