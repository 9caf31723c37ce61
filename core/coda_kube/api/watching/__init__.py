"""What a cache remembers beside its objects. Only `standstill` asks the server."""
