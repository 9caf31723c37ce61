"""Jobs for agents on emulated machines, and what becomes of them."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.write import job_path
from tests.e2e.jobs import PATIENCE_S, job_json, pods_of, wait_for

WINDOW_S = 15.0  # with less, a busy machine has too few samples in it
TUNED_WITHIN_S = 300.0  # 4 to 8 windows with their resizes


def training(name: str, *, cores_needed: int, replicas: int = 1, gpus: int = 1, node: str | None = None) -> Json:
    """A job with automatic cores. `cores_needed` per rank keep its GPUs busy; it starts with 4 per GPU."""
    job = job_json(name, replicas=replicas, gpus=gpus, run_s=None, spec={"cpusPerReplica": "auto"})
    template = job["spec"]["template"]
    amounts = {"memory": "1Gi"}
    template["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
    template["metadata"]["annotations"] |= loads(cores_needed=cores_needed, noise=0.002, gb_per_second=10)
    if node is not None:
        template["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    return job


def loads(**numbers: float) -> dict[str, str]:
    return {f"load.coda.scheduler/{name.replace('_', '-')}": str(number) for name, number in numbers.items()}


@contextmanager
def speaking(machine: Path, pod_uid: str) -> Iterator[None]:
    """This process speaks as one of the pod to the agent of an emulated machine: a mini-batch each second."""
    proc = machine / "proc" / str(os.getpid())
    proc.mkdir(parents=True, exist_ok=True)
    (proc / "stat").write_text(f"{os.getpid()} (train) S " + " ".join(["1"] * 30))
    (proc / "cgroup").write_text(f"0::/kubepods/pod{pod_uid}/{'c' * 64}\n")
    folder, ending = os.open(machine / "agent", os.O_PATH), threading.Event()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(f"/proc/self/fd/{folder}/agent.sock")  # the whole path is too long for a socket

    def speak() -> None:
        count = 0
        while not ending.wait(1.0):
            count += 1
            words = {"v": 1, "type": "steps", "control": "full", "s": [1.0], "count": count, "gpus": []}
            connection.send(json.dumps(words).encode())

    thread = threading.Thread(target=speak)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
        connection.close()
        os.close(folder)


async def wait_for_tuning(user: Client, job: str, *phases: str, within_s: float = TUNED_WITHIN_S) -> Json:
    """The job once its tuning is in one of `phases`."""

    def is_there(item: Json) -> bool:
        return ((item.get("status") or {}).get("tuning") or {}).get("phase") in phases

    return await wait_for(user, job_path(job), is_there, within_s=within_s)


def has_measured(counts: int) -> Callable[[Json], bool]:
    """True if the job's curve has at least this many counts of cores."""
    return lambda item: len(((item.get("status") or {}).get("tuning") or {}).get("steps") or ()) >= counts


async def limits_of(user: Client, job: str) -> list[tuple[str, int]]:
    """Of every rank: the cores by its kubelet, and how often it was restarted."""
    statuses = [pod["status"]["containerStatuses"][0] for pod in await pods_of(user, job)]
    return [(status["resources"]["limits"]["cpu"], status["restartCount"]) for status in statuses]


async def wait_until(
    holds: Callable[[], Any], *, within_s: float = PATIENCE_S, otherwise: Callable[[], str] = str
) -> None:
    """Until `holds` returns true. For conditions that the API server has no watch for. `otherwise` says what is not."""
    ends_s = time.monotonic() + within_s
    while not await holds():
        assert time.monotonic() < ends_s, f"not so after {within_s} s {otherwise()}".rstrip()
        await asyncio.sleep(0.3)
