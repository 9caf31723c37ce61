"""How kopf is set up and fed from: what the design promises of it."""

from __future__ import annotations

import kopf

from coda_operator.feed.handlers import configure
from coda_operator.feed.lean_kopf import EphemeralMemories


def test_kopf_is_quick_and_leaves_nothing_on_objects() -> None:
    settings = kopf.OperatorSettings()
    configure(settings)
    body = kopf.Body({"metadata": {"annotations": {"a": "b"}}, "spec": {"replicas": 2}, "status": {}})
    patch = kopf.Patch()
    diffs = settings.persistence.diffbase_storage
    diffs.store(body=body, patch=patch, essence=diffs.build(body=body))
    assert (dict(patch), diffs.fetch(body=body)) == ({}, None)
    assert settings.persistence.finalizer.startswith("coda.scheduler/")
    assert settings.queueing.error_delays == (1, 2, 4, 8, 16, 30)
    assert settings.networking.request_timeout == 5
    assert (settings.watching.server_timeout, settings.watching.inactivity_timeout) == (30, 35)


def test_a_list_of_very_many_jobs_comes_in_parts() -> None:
    """All at once, 10 000 jobs take longer than a request may, and kopf would try for ever."""
    settings = kopf.OperatorSettings()
    configure(settings)
    assert settings.watching.chunk_size
    assert settings.watching.chunk_size <= 1000


async def test_kopf_remembers_nothing_of_a_job_between_two_events() -> None:
    memories = EphemeralMemories()
    body = kopf.RawBody(metadata={"uid": "one"})
    assert await memories.recall(body) is not await memories.recall(body)
    assert list(memories.iter_all_memories()) == []
