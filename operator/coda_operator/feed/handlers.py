"""The kopf handlers: they put each event of a TrainingJob into the cluster view.

kopf's own bookkeeping is not used. Only `on.event` handlers exist and they return nothing, so kopf writes no annotation
and no finalizer. The finalizer is ours: the reconciler adds and removes it with a resourceVersion.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from coda_kube.api.watch_cache import IDLE_TIMEOUT_S, SERVER_TIMEOUT_S
from coda_kube.objects.names import GROUP, VERSION
from coda_operator.feed.lean_kopf import kopf
from coda_operator.feed.session import Connections
from coda_operator.view import ClusterView

ERROR_DELAYS_S = (1, 2, 4, 8, 16, 30)
OUTAGE_DELAY_S = 1.0
JOBS_AT_ONCE = 50  # parsed, a job is 30 KiB; with objects as large as can be, a list of them is 70 MB


class _EndlessDelays:
    """Delays between kopf's tries while the API server is away. With an end to them, kopf gives up and starts again."""

    def __iter__(self) -> Iterator[float]:
        return itertools.repeat(OUTAGE_DELAY_S)


class _NoDiffs(kopf.DiffBaseStorage):
    """Stores nothing: no handler asks what changed, and copying every object to find out costs half of kopf's time."""

    def build(self, *, body: kopf.Body, extra_fields: Any = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        return


def configure(settings: kopf.OperatorSettings) -> None:
    """Set kopf up: by default it waits for minutes, and lists all jobs in one answer."""
    # Not our finalizer: kopf removes the one it believes to be its own when no handler needs one.
    settings.persistence.finalizer = f"{GROUP}/kopf"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.process.ultimate_exiting_timeout = None  # kopf would kill the process 10 min after we stopped using it
    settings.networking.request_timeout = 5
    settings.networking.error_backoffs = _EndlessDelays()
    settings.queueing.error_delays = ERROR_DELAYS_S
    settings.queueing.idle_timeout = 0.1  # each event's task lives this long after it, and keeps its job in memory
    settings.watching.chunk_size = JOBS_AT_ONCE
    settings.watching.server_timeout = SERVER_TIMEOUT_S
    settings.watching.inactivity_timeout = IDLE_TIMEOUT_S


def registry_for(cluster: ClusterView, connections: Connections) -> kopf.OperatorRegistry:
    """Return kopf's registry with our handlers, bound to `cluster`."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def log_in(**_: Any) -> kopf.AiohttpSession:
        return await connections.log_in()

    @kopf.on.startup(registry=registry)
    async def started(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)

    @kopf.on.event(GROUP, VERSION, "trainingjobs", registry=registry)
    async def put_job(event: kopf.RawEvent, **_: Any) -> None:
        cluster.apply_job_event(event["type"], dict(event["object"]))

    return registry
