"""The cluster of the story, and how it is shown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import aiohttp
from rich.console import Console

from coda.wording import counted
from coda_cli.demo.story import Story
from coda_cli.demo.story_objects import NODES
from coda_cli.target_cluster import refereed
from coda_lab.emulators.nvml.library import build
from coda_lab.host.errors import LabFailure
from coda_lab.host.paths import Settings
from coda_lab.kubelets.nodes import node_specs
from coda_lab.local.cluster import LocalCluster
from coda_lab.local.startup import running_cluster
from coda_lab.spec import ClusterSpec

WINDOW_S = 8.0  # of the agents' measurements; on a cluster 90 s
_LOOK_EVERY_S = 0.5  # an agent's metrics tell nobody when they change
_ROUNDS = "coda_agent_window_duration_seconds"

Keep = Callable[[str, Console], Awaitable[None]]
"""Keeps a cluster that this kubectl reaches, until somebody interrupts."""


async def show_story(console: Console, *, keep: Keep | None) -> tuple[str, ...]:
    """Tell the story on a cluster of its own. Returns what was not seen, a sentence each."""

    def tell(sentence: str) -> None:
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    agents = _agents(tell)
    spec = ClusterSpec(nodes=NODES, racks=1, agents=agents, agent_window_s=WINDOW_S)
    tell("Starting a local cluster of 2 simulated nodes with 8 GPUs and 48 cores each.")
    async with (
        running_cluster(spec, tell=tell) as cluster,
        cluster.client("user") as user,
        cluster.client("admin") as admin,
    ):
        kubectl = f"KUBECONFIG={cluster.kubeconfig('admin')} {' '.join(cluster.kubectl)}"
        tell(f"Look at it from another terminal: {kubectl} get tj,pods -A -o wide")
        tell("The story begins. " + ("The search for cores takes the longest, about 90 s." if agents else ""))
        shown = _Shown(console)
        async with refereed(admin) as watched:
            story = Story(user, admin, shown.act, partial(wait_for_rounds, cluster), with_agents=agents > 0)
            await story.tell()
        problems = [*story.untold]
        if watched.check is not None:
            problems += [f"invariant {one.invariant.value}: {one.sentence}" for one in watched.check.breaches]
            tell(f"\nA checker that reads the API server alone: {watched.check.summary()}.")
        for problem in problems:
            console.print(f"not as expected: {problem}", style="red", highlight=False, markup=False, soft_wrap=True)
        tell(f"{counted(shown.count, 'act')} in {shown.elapsed_s:.0f} s; {counted(len(problems), 'problem')}.")
        if keep is not None:
            await keep(kubectl, console)
    return tuple(problems)


class _Shown:
    """Prints acts as they are told."""

    def __init__(self, console: Console) -> None:
        self.count = 0
        self._console = console
        self._began_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Since the story began."""
        return time.monotonic() - self._began_s

    def act(self, title: str, sentences: Sequence[str]) -> None:
        """Print an act under its number and time."""
        self.count += 1
        self._console.print(
            f"\n{self.count}. {title} ({self.elapsed_s:.0f} s)", style="bold", highlight=False, markup=False
        )
        for sentence in sentences:
            self._console.print(f"   {sentence}", highlight=False, markup=False, soft_wrap=True)


def _agents(tell: Callable[[str], None]) -> int:
    """How many agents there can be: none where their GPUs cannot be emulated."""
    try:
        build(Settings.from_environ().cache)
    except LabFailure as failure:
        tell(f"{failure} Without it the demo shows no tuning and no throttling.")
        return 0
    return 2


async def wait_for_rounds(cluster: LocalCluster, node: str, count: int) -> None:
    """Wait until the agent of a node has done so many more rounds of measuring than now."""
    number = [one.name for one in node_specs(cluster.spec.nodes, racks=cluster.spec.racks)].index(node)
    url = f"http://127.0.0.1:{cluster.ports[f'agent-{number}']}/metrics"
    first: float | None = None
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(url) as response:
                lines = (await response.text()).splitlines()
            done = next((float(line.split()[1]) for line in lines if line.startswith(_ROUNDS + "_count")), 0.0)
            first = done if first is None else first
            if done - first >= count:
                return
            await asyncio.sleep(_LOOK_EVERY_S)
