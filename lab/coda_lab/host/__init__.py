"""This machine: processes, ports, paths, locks and temporary folders."""
