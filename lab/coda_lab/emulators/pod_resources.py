"""The kubelet's pod-resources service on a unix socket: reports the granted devices, as the real one does.

One entry per device, in changing order, no uid. It can be told to refuse, to be slow, to answer with any bytes, and to
restart, which replaces the socket.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from coda_agent.gpus import pod_resources_v1_pb2 as wire


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerDevices:
    """The devices of a container. `devices`: (resource name, id). `claims`: (driver, pool, device)."""

    namespace: str
    pod: str
    container: str = "main"
    devices: tuple[tuple[str, str], ...] = ()
    claims: tuple[tuple[str, str, str], ...] = ()
    exclusive_cpus: tuple[int, ...] = ()
    numa_node: int = 0


class PodResourcesServer:
    """Serves on `socket` between entering and leaving its context. `seed`: of the order of entries."""

    def __init__(self, socket: Path, *, seed: int = 0) -> None:
        self.socket = socket
        self._containers: tuple[ContainerDevices, ...] = ()
        self._random = random.Random(seed)
        self._refusal: grpc.StatusCode | None = None
        self._answer: bytes | None = None
        self._may_answer = threading.Event()
        self._may_answer.set()
        self._server: grpc.Server | None = None

    def give(self, containers: Iterable[ContainerDevices]) -> None:
        """From now on these are all devices of containers."""
        self._containers = tuple(containers)

    def refuse(self, code: grpc.StatusCode | None) -> None:
        """Answer every call with this status; None ends it."""
        self._refusal = code

    def answer_with(self, answer: bytes | None) -> None:
        """Answer every call with these bytes, even if they mean nothing; None ends it."""
        self._answer = answer

    def hang(self, is_hanging: bool) -> None:
        """Let calls wait; those that wait are answered when it ends."""
        (self._may_answer.clear if is_hanging else self._may_answer.set)()

    def start(self) -> None:
        """Make the socket and serve on it."""
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        self._server = grpc.server(ThreadPoolExecutor(max_workers=4), options=[("grpc.so_reuseport", 0)])
        # answers are bytes already, so that they may be no message at all
        listing = grpc.unary_unary_rpc_method_handler(
            self._list, request_deserializer=wire.ListPodResourcesRequest.FromString
        )
        service = grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": listing})
        self._server.add_generic_rpc_handlers((service,))
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()

    def stop(self) -> None:
        """Stop like a killed kubelet: calls are cut, the socket's file stays."""
        self._may_answer.set()
        if self._server is not None:
            self._server.stop(grace=None).wait()
            self._server = None

    def restart(self) -> None:
        """A new socket in the old one's place."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _list(self, request: wire.ListPodResourcesRequest, context: grpc.ServicerContext) -> bytes:
        self._may_answer.wait()
        if self._refusal is not None:
            context.abort(self._refusal, "told to refuse")
        if self._answer is not None:
            return self._answer
        pods = sorted({(given.namespace, given.pod) for given in self._containers})
        self._random.shuffle(pods)
        answer = wire.ListPodResourcesResponse(pod_resources=[self._pod(*pod) for pod in pods])
        return bytes(answer.SerializeToString())

    def _pod(self, namespace: str, name: str) -> wire.PodResources:
        containers = [
            wire.ContainerResources(
                name=given.container,
                devices=self._entries(given),
                cpu_ids=given.exclusive_cpus,
                dynamic_resources=[_claim(claim) for claim in given.claims],
            )
            for given in self._containers
            if (given.namespace, given.pod) == (namespace, name)
        ]
        return wire.PodResources(name=name, namespace=namespace, containers=containers)

    def _entries(self, given: ContainerDevices) -> list[wire.ContainerDevices]:
        topology = wire.TopologyInfo(nodes=[wire.NUMANode(ID=given.numa_node)])
        entries = [
            wire.ContainerDevices(resource_name=resource, device_ids=[device_id], topology=topology)
            for resource, device_id in given.devices
        ]
        self._random.shuffle(entries)
        return entries


def _claim(claim: tuple[str, str, str]) -> wire.DynamicResource:
    driver, pool, device = claim
    resource = wire.ClaimResource(driver_name=driver, pool_name=pool, device_name=device)
    return wire.DynamicResource(claim_name=f"{device}-claim", claim_namespace="default", claim_resources=[resource])
