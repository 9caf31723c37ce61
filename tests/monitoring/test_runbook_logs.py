"""The filters of the runbooks: a real line of the log for each cause, through the page's own grep."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiohttp import web
from kubernetes.aio import client as kubernetes_client

from coda_extender.metrics import Metrics
from coda_extender.planner.cycle import CycleRunner
from coda_extender.planner_process import Message
from coda_extender.planner_process.messages import MOST_BYTES, PREFIX, Failure, frame
from coda_extender.planner_process.process import PlannerProcess, ProcessFailed
from coda_kube.api.client import Client, error_from_answer
from coda_operator.work_queue import WorkQueue
from tests.extender.objects import JOBS
from tests.monitoring.test_alerts import RUNBOOKS

OPERATOR = 'User "system:serviceaccount:coda-system:coda-operator"'
FORBIDDEN = f'pods is forbidden: {OPERATOR} cannot create resource "pods" in API group "" in the namespace "team-a"'
CONFLICT = (
    'Operation cannot be fulfilled on trainingjobs.coda.scheduler "bert": the object has been modified; please apply '
    "your changes to the latest version and try again"
)
WEBHOOK = 'Internal error occurred: failed calling webhook "check.example.com": Post: context deadline exceeded'


def shown(page: str, log: str) -> str:
    """What the page's command shows of this log."""
    (filter_,) = re.findall(
        r"^    kubectl .* logs .*\| (grep .*)$", (RUNBOOKS / f"{page}.md").read_text(), re.MULTILINE
    )
    return subprocess.run(["sh", "-c", filter_], input=log, capture_output=True, text=True, check=False).stdout


def named_in(page: str) -> list[str]:
    """The words of the log that begin the page's points of diagnosis."""
    diagnosis = (RUNBOOKS / f"{page}.md").read_text().partition("## Diagnosis")[2].partition("## Mitigation")[0]
    return re.findall(r"^- `([^`]+)`", diagnosis, re.MULTILINE)


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_asks_for_an_hour_of_the_log(page: Path) -> None:
    """The extender logs a line for each release: 200 lines may be three minutes, and alerts come later."""
    commands = re.findall(r"^    kubectl .* logs .*$", page.read_text(), re.MULTILINE)
    short = [one for one in commands if "--tail=-1" not in one or not ("--since=1h" in one or "--previous" in one)]
    assert short == []


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    caplog.set_level(logging.INFO)
    caplog.handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    return lambda: caplog.text


async def silent_server() -> tuple[web.AppRunner, Client]:
    """An API server that accepts requests and answers none."""

    async def wait(_: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    app = web.Application()
    app.router.add_get("/{path:.*}", wait)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    configuration = kubernetes_client.Configuration()
    configuration.host = "http://{}:{}".format(*runner.addresses[0][:2])
    return runner, Client(configuration, timeout_s=0.2)


async def failed_step(step: Callable[[], object]) -> None:
    """One step of the operator's queue, which fails."""

    async def work(_: str) -> None:
        found = step()
        if asyncio.iscoroutine(found):
            await found

    queue = WorkQueue(work)
    queue.wake("team-a/bert")
    while queue.done < 1:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0)
    await queue.stop()


def refused(code: int, reason: str, message: str) -> Callable[[], object]:
    def step() -> object:
        raise error_from_answer(code, json.dumps({"kind": "Status", "reason": reason, "message": message}))

    return step


async def test_the_log_filter_of_failed_steps_shows_each_cause_in_the_words_of_the_page(log: Callable[[], str]) -> None:
    runner, client = await silent_server()
    steps = [refused(403, "Forbidden", FORBIDDEN), refused(409, "Conflict", CONFLICT)]
    steps += [lambda: client.get(JOBS), refused(500, "InternalError", WEBHOOK), lambda: 1 / 0]
    for step in steps:
        await failed_step(step)
    await client.close()
    await runner.cleanup()
    found = shown("CodaReconcileErrors", log())
    assert [line for line in found.splitlines() if line.endswith(" s")], log()
    for words in ("is forbidden", "has been modified", "Timeout", "failed calling webhook", "an error of our own"):
        assert words in named_in("CodaReconcileErrors")
        assert [line for line in found.splitlines() if words in line and "team-a/bert" in line], (words, found)
    assert "ZeroDivisionError" in found, "the traceback of our own error"


class Child:
    """The process behind a PlannerProcess, which is played by the other end of its socket."""

    pid = 1

    def kill(self) -> None: ...

    def poll(self) -> int:
        return -9

    def wait(self, _: float = 0.0) -> int:
        return -9


class Silent:
    """A process that never answers."""

    pid = 1

    async def ask(self, _: object) -> AsyncIterator[Message]:
        await asyncio.sleep(60)
        yield Failure("")

    def kill(self) -> None: ...


def answers(content: bytes) -> PlannerProcess:
    """A process that sends these bytes, whatever it is asked, and ends."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        theirs.sendall(content)
        theirs.shutdown(socket.SHUT_WR)
        kept.append(theirs.dup())
    return PlannerProcess(Child(), ours)  # type: ignore[arg-type]  # as far as it is used


kept: list[socket.socket] = []  # open ends: a question can be sent


async def test_the_log_filter_of_lost_planner_processes_shows_every_cause(log: Callable[[], str]) -> None:
    text = "Traceback (most recent call last):\n" + '  File "x.py", line 1, in f\n' * 12 + "ValueError: odd\n"
    started = {
        "error": answers(frame(Failure(text))),
        "died": answers(b""),
        "garbage": answers(PREFIX.pack(MOST_BYTES + 1)),
        "hung": Silent(),
    }
    for cause, process in started.items():
        await lose(process, cause)
    found = shown("CodaPlannerProcessLost", log())
    of_killed = "was killed by signal 9"
    for words in ("a cycle failed: Traceback", "ValueError: odd", of_killed, "gave no answer in", "announces"):
        assert words in found, (words, found)
    assert named_in("CodaPlannerProcessLost") == ["died", "hung", "error"]
    for end in kept:
        end.close()


async def lose(process: object, cause: str) -> None:
    async def start() -> object:
        return process

    class NoFeed:
        def changes(self) -> tuple[Message, ...]:
            return ()

    runner = CycleRunner(
        NoFeed,  # type: ignore[arg-type]
        start,  # type: ignore[arg-type]
        Metrics(),
        answer_limit_s=0.2 if cause == "hung" else 60.0,
        start_again_s=(),
        on_refusals=lambda _: None,
        on_new_process=lambda: None,
        in_flight=tuple,
        now_s=lambda: 0.0,
    )
    with pytest.raises(ProcessFailed) as failed:
        await runner.review(1)
    assert failed.value.cause == cause
