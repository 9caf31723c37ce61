"""The node agents, by their NodeProfiles: who tunes where, and who has throttles in force.

A NodeProfile is another program's word. Held of it is only what is read here, and none of that moves a job: the mode
becomes words of a reason, the throttles a pod that restores."""

from __future__ import annotations

from typing import Final

from coda.lifecycle.state import Untuned
from coda_kube.api.client import Client
from coda_kube.api.watch_cache import WatchCache, metadata_only
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import GROUP, VERSION
from coda_operator.view.job_record import JobRecord

PROFILES_PATH: Final = f"/apis/{GROUP}/{VERSION}/nodeprofiles"
_READ: Final = ("time", "throttleCount", "tune")
_OFF: Final = "off"


class Agents:
    """The NodeProfiles of all nodes. Whoever needs them runs the cache."""

    def __init__(self, client: Client) -> None:
        self.cache = WatchCache(client, PROFILES_PATH, held_part=_read_part)

    def why_untuned(self, job: JobRecord) -> Untuned | None:
        """Return why nobody looks for the cores of `job`; None if somebody does, or they are not to be found."""
        if not job.is_untuned or job.placement is None:
            return None
        return self.why_not_on(job.placement.nodes[0])

    def why_not_on(self, node: str) -> Untuned:
        """Return the same of a job with its rank 0 on `node`."""
        if not self.cache.synced.is_set():
            return Untuned.UNKNOWN
        profile = self.cache.by_key.get(node)
        if profile is None:
            return Untuned.NO_AGENT
        return Untuned.OFF if profile["status"].get("tune") == _OFF else Untuned.SILENT


def _read_part(profile: Json) -> Json:
    """A profile may have a thousand sockets and links."""
    status = profile.get("status") or {}
    return metadata_only(profile) | {"status": {name: status[name] for name in _READ if name in status}}
