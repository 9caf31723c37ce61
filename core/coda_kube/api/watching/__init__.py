"""What a cache remembers beside its objects, and how a list is waited for. Only `standstill` asks by itself."""
