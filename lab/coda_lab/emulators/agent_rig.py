"""The whole agent on an emulated node, on fake time. Only the API server is played: pods as they are, jobs as dicts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from prometheus_client import CollectorRegistry

from coda.allocator import Tuning
from coda.errors import Conflict, Outage
from coda.progress import TrainingProgress
from coda_agent.cluster.caches import AgentCaches
from coda_agent.cluster.claims import Claims
from coda_agent.cluster.jobs import TunedJob
from coda_agent.cluster.pods import LocalPod, local_pod_from_json
from coda_agent.gpus.driver.gpus import Gpus
from coda_agent.gpus.pod_resources import PodResources
from coda_agent.loop import Loop
from coda_agent.node import Node
from coda_agent.report.metrics import Metrics
from coda_agent.sensor import GpuSource
from coda_agent.settings import Settings
from coda_kube.job_progress import progress_json
from coda_kube.objects.json_types import Json
from coda_kube.objects.tuning_status import tuning_json
from coda_lab.emulators.node import EmulatedNode


@dataclass
class Api:
    """The API server as the agent sees it, without a server: the pods of an emulated node, and `jobs`."""

    node: EmulatedNode
    namespaces: frozenset[str] = frozenset({"default"})
    jobs: dict[str, Json] = field(default_factory=dict)
    events: list[Json] = field(default_factory=list)
    profiles: list[Json] = field(default_factory=list)
    peers: dict[str, Json] = field(default_factory=dict)  # the NodeProfiles of all nodes, by node
    away_since_s: float | None = None
    allocatable_m: int | None = None
    claimed: Claims = field(default_factory=Claims)
    _read: dict[str, tuple[Json, LocalPod]] = field(default_factory=dict)

    def pods(self) -> tuple[LocalPod, ...]:
        """As the agent's own cluster: read again where they changed."""
        before, self._read = self._read, {}
        for item in self.node.pods_json():
            uid = item["metadata"]["uid"]
            told = {**item, "metadata": {**item["metadata"], "resourceVersion": ""}, "allowed": self.namespaces}
            known = before.get(uid)
            same = known is not None and known[0] == told
            self._read[uid] = known if known and same else (told, local_pod_from_json(item, self.namespaces))
        return tuple(pod for _told, pod in self._read.values())

    def pods_age_s(self) -> float:
        """As the agent's own cluster."""
        return 0.0 if self.away_since_s is None else self.node.now.monotonic_s - self.away_since_s

    def claims(self) -> Claims:
        """As the agent's own cluster."""
        return self.claimed

    def job(self, job: str) -> Json | None:
        """As the agent's own cluster."""
        return self.jobs.get(job)

    def write_status(self, job: str, fields: Json) -> None:
        """Write these fields of the job's status, in the name of their owner."""
        item = self.jobs[job]
        item["status"] |= fields
        item["metadata"]["resourceVersion"] = str(int(item["metadata"]["resourceVersion"]) + 1)

    async def write_tuning(self, job: TunedJob, tuning: Tuning) -> None:
        """As the agent's own cluster."""
        self._answers()
        if job.version != self.jobs[job.id]["metadata"]["resourceVersion"]:
            raise Conflict(f"{job.id} is not as it was read")
        self.write_status(job.id, {"tuning": tuning_json(tuning)})

    async def write_progress(self, metadata: Json, progress: TrainingProgress) -> None:
        """As the agent's own cluster."""
        self._answers()
        self.write_status(f"{metadata['namespace']}/{metadata['name']}", {"progress": progress_json(progress)})

    async def read_profile(self, node: str) -> Json | None:
        """As the agent's own cluster: the last one that `node` wrote."""
        self._answers()
        return self.peers.get(node)

    async def write_profile(self, profile: Json) -> None:
        """As the agent's own cluster."""
        self._answers()
        self.profiles.append(profile)
        self.peers[profile["metadata"]["name"]] = profile

    async def post_event(self, event: Json) -> None:
        """As the agent's own cluster."""
        self._answers()
        self.events.append(event)

    def _answers(self) -> None:
        if self.away_since_s is not None:
            raise Outage("the API server is away")


class Rig:
    """The agent, and the node it works on. One at a time in a process, because NVML allows one."""

    def __init__(self, node: EmulatedNode, folder: Path, gpus: GpuSource | None = None, **settings: Any) -> None:
        """`settings`: the agent's, beyond those of the node. `gpus`: None for NVML in this process, on fake time."""
        self.node = node
        self.folder = folder
        self.gpus = gpus
        self.api = Api(node)
        self._settings = settings
        self.start()

    def start(self) -> None:
        """A new process of the agent."""
        profile = self.node.machine.profile
        peaks = dict.fromkeys(profile.domains, profile.peak_bytes_per_s / 1e9)
        settings = Settings(
            **{"node_name": "n1", "state_dir": self.folder / "state", "peak_gb_per_s": peaks, **self._settings}
        )
        resources = PodResources(answer_s=300.0, ask=lambda _socket, _timeout_s: self.node.grants())
        self.agent = Node(settings, files=self.node.files, pod_resources=resources, gpus=self.gpus or Gpus())
        self.registry = CollectorRegistry()
        metrics = Metrics(self.registry, "n1")
        self.loop = Loop(settings, self.agent, cast(AgentCaches, self.api), metrics, clock=lambda: self.node.now)

    def kill(self) -> None:
        """As SIGKILL: nothing is restored."""
        self.loop._thread.end()
        self.agent.close()

    async def stop(self) -> None:
        """As SIGTERM."""
        await self.loop.end()
        self.agent.close()

    async def run(self, seconds: int) -> None:
        """Run this many rounds, one a second."""
        for _ in range(seconds):
            self.node.advance()
            await self.loop.round()

    def metric(self, name: str, **labels: str) -> float | None:
        """A sample of the agent's metrics."""
        return self.registry.get_sample_value(name, labels)

    def told(self, reason: str) -> list[str]:
        """The pods that got an event with that reason."""
        return [event["involvedObject"]["name"] for event in self.api.events if event["reason"] == reason]
