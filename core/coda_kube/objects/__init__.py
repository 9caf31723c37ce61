"""The JSON of Kubernetes' objects: their names, how they are read into the model and how the model is written.

Nothing here talks to an API server.
"""
