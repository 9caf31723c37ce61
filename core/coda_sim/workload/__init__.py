"""What is simulated: jobs from a trace or a generated month, the models they train, the shape of the cluster."""
