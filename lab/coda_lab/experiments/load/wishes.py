"""Wishes for cores: jobs whose cores are the allocator's grow and shrink while they run, again and again.

Simulated nodes have no agent, and these jobs live too short for a search. In the place of the agent on the node of rank
0 this writes the wishes, with its identity. Each is granted and carried out, or refused, or its job ends meanwhile:
whoever is killed, none is forgotten.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from coda.allocator import Tuning, TuningPhase
from coda.errors import CodaError
from coda.model import Phase
from coda.model.job import Wish
from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import AGENT
from coda_kube.objects.tuning_status import tuning_json
from coda_kube.objects.write import job_path, status_patch

EVERY_S: Final = 1.0
DEADLINE_S: Final = 30.0  # of a wish, by the clock of the one who answers
SOON_S: Final = 90.0  # beyond its deadline, and an API server that is away for two faults
CUT_OFF_S: Final = 95.0
"""Nodes that are cut off for so long neither carry out what was granted nor take it back."""

MOST_STEP: Final = 4  # cores more or fewer


@dataclass(slots=True)
class _Wished:
    sequence: int
    attempt: int
    since_s: float
    is_ended: bool = False


class Wishes:
    """Every wish of a run. `on_job` is a listener for `WatchCache`; `nodes`: those without an agent of their own."""

    def __init__(self, nodes: frozenset[str], *, seed: int, now: Callable[[], float] = time.time) -> None:
        self.ends: Counter[str] = Counter()
        self.unanswered: list[str] = []
        self._nodes = nodes
        self._rng = random.Random(f"wishes {seed}")
        self._now = now
        self._running: dict[str, Json] = {}
        self._last: dict[str, _Wished] = {}  # by uid

    def on_job(self, old: Json | None, new: Json | None) -> None:
        """Follow which jobs run, and how their wishes end."""
        item = new if new is not None else old
        assert item is not None
        uid, status = str(item["metadata"]["uid"]), (new or {}).get("status") or {}
        wished = self._last.get(uid)
        if wished is not None and not wished.is_ended:
            self._see_end(wished, status, is_there=new is not None)
        if new is not None and self._may_wish(new):
            self._running[uid] = new
        else:
            self._running.pop(uid, None)

    async def run(self, clients: Mapping[str, Client]) -> None:
        """Wish until cancelled. `clients`: by node."""
        while True:
            await asyncio.sleep(EVERY_S)
            self._note_unanswered()
            free = [item for uid, item in self._running.items() if self._is_free(uid)]
            if free:
                item = self._rng.choice(free)
                try:
                    await self._wish(clients[_first_node(item)], item)
                except CodaError:  # nobody knows whether it was written
                    self._end(self._last[str(item["metadata"]["uid"])], "perhaps not written")

    def problems(self) -> tuple[str, ...]:
        """A sentence for each wish that was forgotten."""
        self._note_unanswered()
        return tuple(self.unanswered)

    def as_json(self) -> dict[str, Any]:
        """For the report."""
        return dict(sorted(self.ends.items()))

    async def _wish(self, client: Client, item: Json) -> None:
        uid, job = str(item["metadata"]["uid"]), f"{item['metadata']['namespace']}/{item['metadata']['name']}"
        status, before = item["status"], self._last.get(uid)
        attempt, now_s = int(status["attempt"]), self._now()
        sequence = 1 + max(before.sequence if before else 0, *_sequences(status))
        cores = max(1, int(_cores(item)) + self._rng.choice([-1, 1]) * self._rng.randint(1, MOST_STEP))
        wish = Wish(sequence=sequence, cores=cores, since_s=now_s, deadline_s=now_s + DEADLINE_S)
        tuning = Tuning(attempt=attempt, phase=TuningPhase.WISHING, wish=wish)
        self._last[uid] = _Wished(sequence, attempt, now_s)
        patch = status_patch(job, {"tuning": tuning_json(tuning)}, uid=uid)
        await client.apply(job_path(job, status=True), patch, manager=AGENT)

    def _may_wish(self, item: Json) -> bool:
        """Nobody tunes a job on seats, nor one that is told to stop."""
        status = item.get("status") or {}
        placement = status.get("placement") or {}
        return (
            item["spec"].get("cpusPerReplica") == "auto"
            and status.get("phase") == Phase.RUNNING.value
            and _first_node(item) in self._nodes
            and not placement.get("stop")
            and not placement.get("gpus")
        )

    def _is_free(self, uid: str) -> bool:
        last = self._last.get(uid)
        return last is None or last.is_ended or int(self._running[uid]["status"]["attempt"]) != last.attempt

    def _see_end(self, wished: _Wished, status: Json, *, is_there: bool) -> None:
        resize = status.get("resize") or {}
        grant = (status.get("placement") or {}).get("grant") or {}
        if resize.get("sequence") == wished.sequence and resize.get("state") in ("Done", "Refused"):
            self._end(wished, f"resize {resize['state']}")
        elif grant.get("sequence") == wished.sequence and grant.get("state") == "Refused":
            self._end(wished, f"grant Refused {grant.get('code')}")
        elif (
            not is_there
            or status.get("phase") not in (Phase.RUNNING.value, Phase.STARTING.value)
            or (status.get("placement") or {}).get("stop")
            or int(status.get("attempt") or 1) != wished.attempt
        ):
            self._end(wished, "its job ended or stopped first")

    def _end(self, wished: _Wished, how: str) -> None:
        wished.is_ended = True
        self.ends[how] += 1

    def _note_unanswered(self) -> None:
        for uid, wished in self._last.items():
            if wished.is_ended or uid not in self._running:
                continue
            item = self._running[uid]
            is_granted = _is_granted(item, wished.sequence)
            if self._now() - wished.since_s > DEADLINE_S + SOON_S + (CUT_OFF_S if is_granted else 0.0):
                late = f"{item['metadata']['namespace']}/{item['metadata']['name']}"
                what = "granted and never carried out or taken back" if is_granted else "never answered"
                self.unanswered.append(f"wish {wished.sequence} of job {late} was {what}")
                self._end(wished, "never")


def _is_granted(item: Json, sequence: int) -> bool:
    grant = (item["status"].get("placement") or {}).get("grant") or {}
    return (grant.get("sequence"), grant.get("state")) == (sequence, "Granted")


def _first_node(item: Json) -> str:
    nodes = ((item.get("status") or {}).get("placement") or {}).get("nodes") or [""]
    return str(nodes[0])


def _sequences(status: Json) -> tuple[int, ...]:
    found = (
        status.get("resize"),
        (status.get("placement") or {}).get("grant"),
        (status.get("tuning") or {}).get("wish"),
    )
    return tuple(int((one or {}).get("sequence") or 0) for one in found)


def _cores(item: Json) -> int:
    status = item["status"]
    resized = (status.get("resize") or {}).get("coresPerReplica")
    return int(resized or (status.get("placement") or {}).get("cpusPerReplica") or 1)
