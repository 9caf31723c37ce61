"""Signs of progress, as the watches bring them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from coda_kube.objects.names import LABEL_JOB_UID, PLANNER_LEASE
from coda_kube.objects.quantities import time_from_seconds
from coda_lab.experiments.chaos.progress_signs import Sign, Signs, What


class Scene:
    """Signs at a time of the test's choice."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.signs = Signs(now=lambda: self.now_s)
        self.last_lease: dict[str, Any] | None = None

    def bind(self, name: str, *, at_s: float, seen_s: float, gang: bool = True) -> None:
        self.now_s = seen_s
        labels = {LABEL_JOB_UID: "u"} if gang else {}
        old: dict[str, Any] = {"metadata": {"name": name, "labels": labels}, "spec": {}}
        bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": time_from_seconds(int(at_s))}
        self.signs.on_pod(old, old | {"spec": {"nodeName": "n"}, "status": {"conditions": [bound]}})

    def lease(self, holder: str, *, renewed: str) -> None:
        spec = {"holderIdentity": holder, "renewTime": renewed}
        new: dict[str, Any] = {"metadata": {"name": PLANNER_LEASE}, "spec": spec}
        self.signs.on_lease(self.last_lease, new)
        self.last_lease = new


async def soon(waiting: asyncio.Task[Sign]) -> Sign:
    async with asyncio.timeout(1):
        return await waiting


async def waits(waiting: asyncio.Task[Sign]) -> bool:
    """True while the task has nothing to do but wait."""
    for _ in range(5):
        await asyncio.sleep(0)
    return not waiting.done()


async def test_a_pod_bound_before_the_moment_but_seen_after_it_is_no_progress() -> None:
    """A watch that lists anew after an outage brings old binds, too."""
    scene = Scene()
    waiting = asyncio.create_task(scene.signs.next_after(What.BOUND, 1010.5))
    assert await waits(waiting)
    scene.bind("old", at_s=1003.0, seen_s=1011.0)
    assert await waits(waiting)
    scene.bind("new", at_s=1011.2, seen_s=1011.3)
    assert (await soon(waiting)).subject == "new"


async def test_foreign_pods_are_no_progress() -> None:
    scene = Scene()
    waiting = asyncio.create_task(scene.signs.next_after(What.BOUND, 1000.0))
    assert await waits(waiting)
    scene.bind("foreign", at_s=1001.0, seen_s=1001.0, gang=False)
    assert await waits(waiting)
    waiting.cancel()


async def test_a_sign_seen_just_before_it_is_waited_for_counts() -> None:
    scene = Scene()
    scene.bind("p", at_s=1001.0, seen_s=1001.0)
    assert (await scene.signs.next_after(What.BOUND, 1000.0)).subject == "p"


async def test_only_another_holder_is_a_new_one_and_the_same_renews() -> None:
    scene = Scene()
    scene.lease("coda-extender-0-a", renewed="1")
    changes = [asyncio.create_task(scene.signs.next(_kind(what))) for what in (What.HOLDER, What.RENEWED)]
    assert await waits(changes[0])
    scene.lease("coda-extender-0-a", renewed="1")
    scene.lease("", renewed="1")
    assert await waits(changes[0])
    assert await waits(changes[1])
    scene.lease("coda-extender-0-a", renewed="2")
    assert (await soon(changes[1])).subject == PLANNER_LEASE
    assert await waits(changes[0])
    scene.lease("coda-extender-0-b", renewed="3")
    assert (await soon(changes[0])).subject == PLANNER_LEASE
    assert scene.signs.holder_by_lease == {PLANNER_LEASE: "coda-extender-0-b"}


def _kind(what: What) -> Callable[[Sign], bool]:
    return lambda sign: sign.what is what


async def test_what_the_planner_writes_is_not_the_operators() -> None:
    scene = Scene()
    waiting = asyncio.create_task(scene.signs.next_after(What.WROTE, 1000.0))
    assert await waits(waiting)

    def job(**status: object) -> dict[str, Any]:
        return {"metadata": {"name": "j"}, "status": status}

    scene.signs.on_job(job(phase="Queued"), job(phase="Queued", placement={"attempt": 1}, pending=None))
    assert await waits(waiting)
    scene.signs.on_job(job(phase="Queued"), job(phase="Launched"))
    assert (await soon(waiting)).subject == "j"
