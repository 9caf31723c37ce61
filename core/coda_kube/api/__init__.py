"""Talking to an API server: credentials, the client, caches from watches, the Lease. No object is understood here."""
