"""What the watch of gang pods tells besides the pods: how fast they are bound, and what its breaks hide."""
