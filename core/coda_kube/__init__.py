"""The Kubernetes edge, shared by the shells: the only code that knows the objects' JSON."""
