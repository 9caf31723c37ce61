"""Talks to an API server: credentials, the client, caches from watches, the Lease, and a daemon's own probes.

It understands no object beyond its metadata. Read `client`, `credentials`, `retry_pauses`, `watch_cache`, `lease`,
`probes`.
"""

from coda_kube.api.client import AlreadyExists, Client, Expired, NotFound, Rejected, connect
from coda_kube.api.lease import Elector, LeaseTimes
from coda_kube.api.watch_cache import Listener, WatchCache, key_of, version_of

__all__ = [
    "AlreadyExists",
    "Client",
    "Elector",
    "Expired",
    "LeaseTimes",
    "Listener",
    "NotFound",
    "Rejected",
    "WatchCache",
    "connect",
    "key_of",
    "version_of",
]
