"""The planner process: it decides, and whatever becomes of it, the guard answers and another one takes its place."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coda.cycle import Part
from coda.model import WaitCode
from coda.model.constraints import NodeConstraints, NodeTerm, Requirement
from coda.policy import PolicyConfig
from coda_extender.metrics import resident_bytes
from coda_extender.planner_process import AnswerEnd, ChangedRefusals, Kind, Message, Question, Values
from coda_extender.planner_process.messages import values_in_messages
from coda_extender.planner_process.process import PlannerProcess, ProcessFailed
from tests.builders import HOST_LABEL, job, node
from tests.extender.deciders import InProcess
from tests.extender.fake_api import FakeApi
from tests.extender.objects import JOBS, NODES, job_json, node_json, pod_json
from tests.extender.replicas import Replica, replica, state_of, status

MEMORY_BYTES = 1 << 30


class Processes:
    """Starts planner processes, and knows them."""

    def __init__(self) -> None:
        self.started: list[PlannerProcess] = []

    async def start(self) -> PlannerProcess:
        self.started.append(await PlannerProcess.start(PolicyConfig(), memory_bytes=MEMORY_BYTES))
        return self.started[-1]

    def signal(self, number: int) -> None:
        os.kill(self.started[-1].pid, number)


def is_alive(pid: int) -> bool:
    """False for a process that is gone or was killed and waits for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def lost(one: Replica, cause: str) -> float:
    return one.count("coda_planner_processes_lost_total", cause=cause)


@pytest.fixture
async def api() -> FakeApi:
    api = FakeApi()
    api.set(NODES, node_json("n1"))
    return api


async def test_a_process_decides_and_ends_with_the_leadership(api: FakeApi) -> None:
    processes = Processes()
    api.set(JOBS, job_json("gang"))
    api.set(JOBS, job_json("waits"))
    async with replica(api, start=processes.start) as one:
        await api.until(lambda: state_of(api, "gang") == "Released" and "pending" in status(api, "waits"))
        (process,) = processes.started
        assert is_alive(process.pid)
        assert one.count("coda_extender_memory_bytes", process="planner") > 1 << 20
    await ended(process.pid)


async def ended(pid: int) -> None:
    async with asyncio.timeout(60.0):
        while is_alive(pid):
            await asyncio.sleep(0.01)


async def test_a_killed_process_is_replaced_and_the_guard_answers_meanwhile(api: FakeApi) -> None:
    processes = Processes()
    api.set(JOBS, job_json("gang"))
    async with replica(api, start=processes.start) as one:
        await api.until(lambda: state_of(api, "gang") == "Released")
        epoch = one.elector.epoch
        processes.signal(signal.SIGKILL)
        await ended(processes.started[0].pid)
        api.set(NODES, node_json("n2"))
        api.set(JOBS, job_json("next"))
        answer = one.ask(pod_json("web", gpus=1), ["n1"])
        assert (answer.error, list(answer.passed)) == ("", [])  # withheld for the gang
        await api.until(lambda: state_of(api, "next") == "Released")
        assert len(processes.started) == 2
        assert lost(one, "died") == 1
        assert one.elector.epoch == epoch


async def test_a_process_that_hangs_is_killed_and_replaced(api: FakeApi) -> None:
    """It never answers, and its replacement answers at once, however busy the machine is."""
    running: list[Replica] = []
    hanging: list[PlannerProcess] = []

    async def start() -> PlannerProcess | InProcess:
        if running and lost(running[0], "hung"):
            return InProcess(PolicyConfig())
        hanging.append(await PlannerProcess.start(PolicyConfig(), memory_bytes=MEMORY_BYTES))
        os.kill(hanging[-1].pid, signal.SIGSTOP)
        return hanging[-1]

    api.set(JOBS, job_json("gang"))
    async with replica(api, start=start, answer_limit_s=2.0) as one:
        running.append(one)
        await api.until(lambda: state_of(api, "gang") == "Released", timeout_s=60.0)
        assert lost(one, "hung") >= 1
        for process in hanging:
            await ended(process.pid)


class Broken(InProcess):
    """A decider that fails at every question."""

    async def ask(self, question):  # type: ignore[no-untyped-def]
        raise ProcessFailed("error", "a cycle failed: no luck")
        yield


async def test_a_leader_whose_processes_all_fail_gives_up_the_lease(api: FakeApi) -> None:
    async def broken() -> Broken:
        return Broken(PolicyConfig())

    api.set(JOBS, job_json("gang"))
    async with replica(api, "broken", start=broken, start_again_s=(0.01, 0.01)) as one:
        await api.until(lambda: lost(one, "error") >= 3)
        async with replica(api, "other"):
            await api.until(lambda: state_of(api, "gang") == "Released")


async def test_an_object_that_no_cycle_survives_ends_no_process(api: FakeApi) -> None:
    """The error comes back as an answer, with its traceback."""
    process = await PlannerProcess.start(PolicyConfig(), memory_bytes=MEMORY_BYTES)
    question: list[Message] = [Question(Kind.CYCLE, 1, "no time")]  # type: ignore[arg-type]
    try:
        with pytest.raises(ProcessFailed, match="Traceback"):
            async for _ in process.ask([*broken_values(), *question]):
                pass
        assert is_alive(process.pid)
    finally:
        process.kill()


def broken_values() -> list[Message]:
    return [Values(Part.JOBS, [("default/gang", "not a job")])]


async def test_a_process_that_needs_too_much_memory_ends_alone() -> None:
    process = await PlannerProcess.start(PolicyConfig(), memory_bytes=96 << 20)
    many: list[Message] = [Values(Part.USED, [(f"n{number}", "x" * (8 << 20))]) for number in range(20)]
    try:
        with pytest.raises(ProcessFailed) as failed:
            async for _ in process.ask([*many, Question(Kind.REVIEW, 1, 0.0)]):
                pass
        assert failed.value.cause == "died"
    finally:
        process.kill()


async def test_the_process_judges_demands_that_take_long_in_turns() -> None:
    """2000 nodes, and 300 jobs of one namespace that each name other nodes: seconds, if all were judged at once."""
    nodes = [node(f"n{number:04}") for number in range(2000)]
    terms = [
        NodeTerm(labels=(Requirement(key=HOST_LABEL, operator="NotIn", values=(each.name,)),)) for each in nodes[:300]
    ]
    jobs = [job(f"c{at}", gpus=9, constraints=NodeConstraints(terms=(term,))) for at, term in enumerate(terms)]
    jobs.append(job("honest", namespace="other", gpus=9))
    question: list[Message] = [*values_in_messages(Part.NODES, [(each.name, each) for each in nodes], is_whole=True)]
    question += values_in_messages(Part.JOBS, [(each.id, each) for each in jobs], is_whole=True)
    process = await PlannerProcess.start(PolicyConfig(), memory_bytes=MEMORY_BYTES)
    try:
        answers = [answer async for answer in process.ask([*question, Question(Kind.CYCLE, 1, 0.0)])]
    finally:
        process.kill()
    end = answers[-1]
    assert isinstance(end, AnswerEnd)
    assert end.jobs_by_code[WaitCode.JUDGED_IN_TURNS] > 50
    assert end.wake_s is not None
    told = [group for answer in answers if isinstance(answer, ChangedRefusals) for group in answer.groups]
    assert [group.reason.code for group in told if "other/honest" in group.jobs] == [WaitCode.NEVER_FITS]


async def test_ctrl_c_is_the_extender_s_matter() -> None:
    process = await PlannerProcess.start(PolicyConfig(), memory_bytes=MEMORY_BYTES)
    try:
        assert [type(answer).__name__ async for answer in process.ask([Question(Kind.CYCLE, 1, 0.0)])] == ["AnswerEnd"]
        assert os.getpgid(process.pid) != os.getpgid(0)
        os.kill(process.pid, signal.SIGINT)
        assert [type(answer).__name__ async for answer in process.ask([Question(Kind.CYCLE, 1, 0.0)])] == ["AnswerEnd"]
        assert 0 < resident_bytes(process.pid) < 64 << 20
    finally:
        process.kill()


PARENT = """
import asyncio
from coda.policy import PolicyConfig
from coda_extender.planner_process import Kind, Question
from coda_extender.planner_process.process import PlannerProcess

async def main():
    process = await PlannerProcess.start(PolicyConfig(), memory_bytes=1 << 30)
    assert [answer async for answer in process.ask([Question(Kind.CYCLE, 1, 0.0)])]
    print(process.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def start_parent() -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("stopped", [False, True], ids=["answering", "stopped"])
async def test_the_process_ends_when_the_extender_is_killed(stopped: bool) -> None:
    parent = start_parent()
    assert parent.stdout is not None
    try:
        pid = int(parent.stdout.readline())
        if stopped:
            os.kill(pid, signal.SIGSTOP)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    await ended(pid)
