"""The pods of a simulated kubelet: read, run and reported."""
