"""A gang of thousands of ranks that fail at once: the leader must renew its Lease meanwhile."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from coda.diagnosis import Diagnosis, End, built_in_rules, conclude
from coda.lifecycle import PodState, Terms
from coda_kube.api.client import Client
from coda_operator.reconcile.failures import rank_logs
from coda_operator.view import Agents, ClusterView, JobRecord
from tests.core.gangs import plan, pod, situation

RANKS = 100
LAST = "torch.OutOfMemoryError: CUDA out of memory."


class Asked:
    """A job, as far as its logs are looked for."""

    def __init__(self) -> None:
        self.pods_path = "/api/v1/namespaces/default/pods"
        self.json = {"spec": {"template": {"spec": {"containers": [{"name": "main"}]}}}}


class NoAgents:
    def __init__(self) -> None:
        self.agents = Agents(cast("Client", self), clock=lambda: 0.0)


class NoLogs:
    async def tail(self, *args: object, **more: object) -> bytes:
        return b""


def test_ends_are_judged_off_the_event_loop_and_few_messages_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[tuple[threading.Thread, list[End]]] = []

    def watched(found: Any, ends: list[End], rules: Any) -> Diagnosis:
        judged.append((threading.current_thread(), ends))
        return conclude(found, ends, rules)

    monkeypatch.setattr(rank_logs, "conclude", watched)
    failed = [
        pod(rank, state=PodState.FAILED, ended=True, exit_code=1, ended_s=rank, message=LAST) for rank in range(RANKS)
    ]
    now = situation(None, *failed, placement=plan(replicas=RANKS), terms=Terms(replicas=RANKS))
    logs = rank_logs.RankLogs(cast("Client", NoLogs()), cast("ClusterView", NoAgents()), built_in_rules())
    found, _ = asyncio.run(logs.diagnose(cast("JobRecord", Asked()), now))
    assert "out of memory" in found.evidence
    assert judged
    assert all(thread is not threading.main_thread() for thread, _ in judged)
    (_, ends) = judged[0]
    assert len(ends) == RANKS
    assert sum(bool(end.said) for end in ends) == rank_logs.MOST_LOGS
