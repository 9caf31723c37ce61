"""Who asked for a pod, where it may run, its main container, and which pods are CPU jobs.

Read `users`, `node_terms`, then `cpu_job`."""
