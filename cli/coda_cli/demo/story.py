"""The story that `coda demo` tells: five things that Coda does, on one local cluster, as they happen.

The acts do not wait for each other where they need not. Each tells its sentences once it has seen what it says.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Final

from coda.contention import ContentionConfig
from coda.errors import CodaError
from coda.wording import counted
from coda_cli.demo import story_objects as objects
from coda_cli.explain.explain_command import explained
from coda_kube.api.client import Client
from coda_kube.api.until import until
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_BORROWS, API_VERSION
from coda_lab import install

GIVE_UP_S: Final = 400.0  # of an act: several times what it takes
_TRAINING_JOBS: Final = f"/apis/{API_VERSION}/namespaces/{objects.TRAINING}/trainingjobs"
_WEB_PODS: Final = f"/api/v1/namespaces/{objects.CPU_JOBS}/pods"
_STREAM_PODS: Final = f"/api/v1/namespaces/{objects.ANALYTICS}/pods"

Say = Callable[[str, Sequence[str]], None]
"""Receives the title of an act and its sentences."""

Measured = Callable[[str, int], Awaitable[None]]
"""Returns once the agent of a node has measured so many more rounds."""


class Story:
    """Tells the acts on a fresh cluster of `objects.NODES`."""

    def __init__(self, user: Client, admin: Client, say: Say, measured: Measured, *, with_agents: bool) -> None:
        """`user` submits training jobs, `admin` all else. Without agents nobody tunes and throttles."""
        self._user = user
        self._admin = admin
        self._say = say
        self._measured = measured
        self._with_agents = with_agents
        self.untold: list[str] = []  # acts that did not come to their end, and why

    async def tell(self) -> None:
        """All acts. Those that fail are in `untold`."""
        for namespace in objects.NAMESPACES:
            await self._admin.create("/api/v1/namespaces", namespace)
            await install.wait_for_account(self._admin, namespace["metadata"]["name"])
        await self._submit(objects.training_job("victim", cpus=4, node=objects.VICTIM_NODE))
        await self._submit(objects.training_job("resnet", node=objects.TUNED_NODE))
        async with asyncio.TaskGroup() as acts:
            acts.create_task(self._act("lending and reclaim", self._lend_and_reclaim()))
            if self._with_agents:
                acts.create_task(self._act("tuning", self._tune()))
                acts.create_task(self._act("throttling", self._throttle()))

    async def _act(self, name: str, act: Coroutine[None, None, None]) -> None:
        try:
            await asyncio.wait_for(act, GIVE_UP_S)
        except TimeoutError:
            self.untold.append(f"{name}: not seen within {GIVE_UP_S:.0f} s")
        except CodaError as error:
            self.untold.append(f"{name}: {error}")

    async def _lend_and_reclaim(self) -> None:
        await self._until(_TRAINING_JOBS, lambda found: all(_runs(found, name) for name in ("victim", "resnet")))
        await self._admin.create(f"/apis/apps/v1/namespaces/{objects.CPU_JOBS}/deployments", objects.web())
        pods = await self._until(_WEB_PODS, lambda found: len(_bound(found)) >= objects.WEB_PODS)
        borrowers = {name for name, pod in pods.items() if _borrows(pod)}
        cores = counted(len(pods) * objects.WEB_CORES, "core")
        lent = counted(len(borrowers) * objects.WEB_CORES, "core")
        self._say(
            "CPU jobs borrow what training leaves idle",
            [f"The {len(pods)} pods of the Deployment batch/web run on {cores}. {lent} of them belong to training."],
        )
        began_s = time.monotonic()
        await self._submit(objects.training_job("gpt", replicas=2, gpus=4, cpus=16))
        await self._until(_TRAINING_JOBS, lambda found: _runs(found, "gpt"))
        took_s = time.monotonic() - began_s
        left = await self._until(_WEB_PODS, lambda found: len(found) >= objects.WEB_PODS)
        evicted = pods.keys() - left.keys()
        self._say(
            "A gang takes the cores back",
            [
                f"gpt (2 ranks of 4 GPUs and 16 cores) runs {took_s:.1f} s after it was submitted.",
                f"For it {counted(len(evicted), 'borrowing pod')} of web {'was' if len(evicted) == 1 else 'were'} "
                f"evicted; {counted(len(left) - len(_bound(left)), 'new one')} of the same owner wait in their places.",
            ],
        )
        await self._submit(objects.training_job("too-early", replicas=2, gpus=8, cpus=8))
        await self._until(_TRAINING_JOBS, lambda found: bool(_status(found, "too-early").get("pending")))
        self._say("A job says why it waits", (await explained(self._user, objects.TRAINING, "too-early")).sentences)

    async def _tune(self) -> None:
        def is_tuned(found: Mapping[str, Json]) -> bool:
            return bool(((_status(found, "resnet").get("tuning") or {}).get("answer") or {}).get("coresPerReplica"))

        status = _status(await self._until(_TRAINING_JOBS, is_tuned), "resnet")
        tuning = status["tuning"]
        steps = [(step["coresPerReplica"], 100 * float(step["gpuUtilization"])) for step in tuning["steps"]]
        curve = ", ".join(f"{cores} cores: {busy:.0f} %" for cores, busy in steps)
        self._say(
            "A job finds how many cores it needs",
            [
                f"resnet asked for no number. Its agent measured how busy its GPU is with {curve}.",
                f"It keeps {tuning['answer']['coresPerReplica']} cores, without a restart.",
            ],
        )

    async def _throttle(self) -> None:
        await self._until(_TRAINING_JOBS, lambda found: _runs(found, "victim"))
        await self._measured(objects.VICTIM_NODE, 2 * ContentionConfig().learn_windows)
        await self._admin.create(_STREAM_PODS, objects.stream())
        said = [await self._event("Throttled")]
        await self._admin.patch(f"{_STREAM_PODS}/stream", {"metadata": {"annotations": objects.stream_notes(1)}})
        said.append(await self._event("ThrottleReleased"))
        self._say("A CPU pod that slows training down is slowed down itself", said)

    async def _event(self, reason: str) -> str:
        """What the agent says to the pod `stream` for this reason."""
        path, query = f"/api/v1/namespaces/{objects.ANALYTICS}/events", {"fieldSelector": f"reason={reason}"}
        found = await self._until(path, lambda events: bool(events), query)
        return f"{reason}: {next(iter(found.values()))['message']}"

    async def _submit(self, job: Json) -> None:
        await self._user.create(_TRAINING_JOBS, job)

    async def _until(
        self,
        path: str,
        holds: Callable[[Mapping[str, Json]], bool],
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Json]:
        """The objects of a collection, by name, once this is true of them."""
        seen: dict[str, Json] = {}

        def is_there(by_key: Mapping[str, Json]) -> bool:
            seen.clear()
            seen.update({key.rpartition("/")[2]: item for key, item in by_key.items()})
            return holds(seen)

        await until(self._admin, path, is_there, query=query)
        return seen


def _status(found: Mapping[str, Json], name: str) -> Json:
    status: Json = (found.get(name) or {}).get("status") or {}
    return status


def _runs(found: Mapping[str, Json], name: str) -> bool:
    return bool(_status(found, name).get("phase") == "Running")


def _bound(found: Mapping[str, Json]) -> list[str]:
    return [name for name, pod in found.items() if pod["spec"].get("nodeName")]


def _borrows(pod: Json) -> bool:
    return (pod["metadata"].get("annotations") or {}).get(ANNOTATION_BORROWS) == "true"
