"""Reads which claims may keep the ranks of a gang from starting on several nodes: kubelets say that in events only.

Nothing is read for a gang whose ranks are created within a minute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from coda.lifecycle import Situation
from coda.lifecycle.deadlines import NOT_CREATED_S
from coda.lifecycle.state import of_attempt
from coda_kube.api.client import Client, NotFound, Rejected
from coda_kube.objects.volumes import claims_of, is_for_one_node
from coda_operator.reconcile.request_slots import RequestSlots
from coda_operator.view import JobRecord


class SharedClaims:
    """Asks the API server, once in an attempt."""

    def __init__(self, client: Client, requests: RequestSlots, clock: Callable[[], float]) -> None:
        self._client = client
        self._requests = requests
        self._clock = clock
        self._known: dict[str, tuple[str, int, tuple[str, ...]]] = {}  # by key: uid, attempt, claims

    async def add_to(self, now: Situation, job: JobRecord) -> Situation:
        """Add the claims that are for one node, while a rank is not created and others are elsewhere. Raises Outage."""
        if not self._is_stuck(now):
            self.forget(job.key)
            return now
        uid, attempt, claims = self._known.get(job.key, ("", 0, ()))
        if (uid, attempt) != (job.uid, now.progress.attempt):
            claims = await self._read(job)
            self._known[job.key] = (job.uid, now.progress.attempt, claims)
        return replace(now, one_node_claims=claims) if claims else now

    def forget(self, key: str) -> None:
        """The job is gone, or starts."""
        self._known.pop(key, None)

    def _is_stuck(self, now: Situation) -> bool:
        late_s = self._clock() - NOT_CREATED_S
        pods = of_attempt(now)
        is_late = any(pod.creating_since_s is not None and pod.creating_since_s <= late_s for pod in pods)
        return is_late and len({pod.node for pod in pods if pod.node}) > 1

    async def _read(self, job: JobRecord) -> tuple[str, ...]:
        """Return those of the template's claims; one that is gone, or may not be read, is none of them."""
        found: list[str] = []
        for name in claims_of((job.json["spec"].get("template") or {}).get("spec") or {}):
            try:
                async with self._requests.reading():
                    claim = await self._client.get(f"{job.pods_path.rpartition('/')[0]}/persistentvolumeclaims/{name}")
            except NotFound:
                continue
            except Rejected as refusal:
                if refusal.status != 403:
                    raise
                continue
            found += [name] if is_for_one_node(claim) else []
        return tuple(found)
