"""Asks the kubelet which devices it gave to which container, over its pod-resources socket.

The kubelet tells names, not uids; `ownership` joins them. Each question has its own connection, so the next one finds a
restarted kubelet, which makes a new socket."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from google.protobuf.message import DecodeError

from coda.errors import Outage
from coda_agent.claimed_device import ClaimedDevice
from coda_agent.gpus import pod_resources_v1_pb2 as wire
from coda_agent.gpus.allocations import Grant
from coda_agent.gpus.unary_call import CallFailed, call

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")  # mount its folder: the kubelet replaces the socket
_MOST_BYTES = 16 << 20  # the kubelet's own limit
_METHOD = "/v1.PodResourcesLister/List"
_MOST_CPUS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What the kubelet last said. `why`: one sentence, if the last attempt failed.

    `at_s`: when it said so, on the clock that never jumps; None: never."""

    at_s: float | None = None
    grants: tuple[Grant, ...] = ()  # by namespace, pod, container
    why: str | None = None


def ask_kubelet(socket: Path, timeout_s: float) -> tuple[Grant, ...]:
    """Ask once. Raises Outage if there is no answer within `timeout_s`, or none that can be read."""
    try:
        question = wire.ListPodResourcesRequest().SerializeToString()
        answer = call(socket, _METHOD, question, timeout_s=timeout_s, most_bytes=_MOST_BYTES)
        return grants_from(wire.ListPodResourcesResponse.FromString(answer))
    except CallFailed as error:
        raise Outage(f"the kubelet's {socket} gave no list of devices: {error}") from error
    except DecodeError as error:
        raise Outage(f"the kubelet's {socket} gave a list of devices that cannot be read: {error}") from error


def grants_from(answer: wire.ListPodResourcesResponse) -> tuple[Grant, ...]:
    """Return the answer's containers, without those that name no pod, and without CPUs that no machine has."""
    grants = [
        _grant(pod, container)
        for pod in answer.pod_resources
        if pod.name and pod.namespace
        for container in pod.containers
    ]
    return tuple(sorted(grants, key=lambda grant: (grant.namespace, grant.pod, grant.container)))


class PodResources:
    """The kubelet's list, kept for a while. One thread at a time.

    The question is asked in a thread of its own, for up to `timeout_s`; `listing` waits `answer_s` for it, and a later
    answer serves a later call. `keep_s`: how long an answer serves. The next question never comes within `pause_s` of
    the last attempt, since the kubelet limits its callers. Defaults: 10 s as dcgm-exporter and the kubelet's clients;
    the others are our choice."""

    def __init__(
        self,
        socket: Path = SOCKET,
        *,
        timeout_s: float = 10.0,
        answer_s: float = 0.2,
        keep_s: float = 10.0,
        pause_s: float = 1.0,
        ask: Callable[[Path, float], tuple[Grant, ...]] = ask_kubelet,
    ) -> None:
        self._socket, self._timeout_s, self._keep_s, self._pause_s, self._ask = socket, timeout_s, keep_s, pause_s, ask
        self._answer_s = answer_s
        self._answers: queue.SimpleQueue[tuple[Grant, ...] | Exception] | None = None  # of the question under way
        self._listing = Listing()
        self._attempted_s = float("-inf")
        self._asked_about: frozenset[str] = frozenset()  # the pods of the last question

    def listing(self, now_s: float, pods: frozenset[str] = frozenset()) -> Listing:
        """Return the newest answer; ask again if it is too old, or one of `pods` is new: the uids of those that run.

        The old answer stays while the kubelet is silent."""
        if self._answers is None and self._is_due(now_s, pods):
            self._attempted_s, self._asked_about = now_s, pods
            self._answers = self._question()
        if self._answers is None:
            return self._listing
        try:
            answer = self._answers.get(timeout=self._answer_s)
        except queue.Empty:
            return self._listing
        self._answers = None
        if isinstance(answer, Outage):
            self._listing = replace(self._listing, why=str(answer))
            self._asked_about = frozenset()  # nothing was learned about a pod that is new
        elif isinstance(answer, Exception):
            raise answer
        else:
            self._listing = Listing(at_s=now_s, grants=answer)
        return self._listing

    def _question(self) -> queue.SimpleQueue[tuple[Grant, ...] | Exception]:
        answers: queue.SimpleQueue[tuple[Grant, ...] | Exception] = queue.SimpleQueue()

        def ask() -> None:
            try:
                answers.put(self._ask(self._socket, self._timeout_s))
            except Exception as error:  # raised in the thread that called
                answers.put(error)

        threading.Thread(target=ask, name="kubelet", daemon=True).start()
        return answers

    def _is_due(self, now_s: float, pods: frozenset[str]) -> bool:
        is_old = self._listing.at_s is None or now_s - self._listing.at_s >= self._keep_s
        return (is_old or not pods <= self._asked_about) and now_s - self._attempted_s >= self._pause_s


def _grant(pod: wire.PodResources, container: wire.ContainerResources) -> Grant:
    ids = {(device.resource_name, one) for device in container.devices for one in device.device_ids}
    claims = {
        ClaimedDevice(driver=claim.driver_name, pool=claim.pool_name, device=claim.device_name)
        for resource in container.dynamic_resources
        for claim in resource.claim_resources
        if claim.driver_name
    }
    return Grant(
        namespace=pod.namespace,
        pod=pod.name,
        container=container.name,
        device_ids=tuple(sorted(ids)),
        claimed=tuple(sorted(claims, key=lambda claim: (claim.driver, claim.pool, claim.device))),
        exclusive_cpus=frozenset(cpu for cpu in container.cpu_ids if 0 <= cpu < _MOST_CPUS),
    )
