"""What a cache remembers beside its objects. It sends no request."""
