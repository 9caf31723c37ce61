"""Talking to an API server: credentials, the client, caches from watches, the Lease. Nothing here knows what an object means."""
