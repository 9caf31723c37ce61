"""The socket's other end, inside a job: in this process, with an agent that a test plays."""

from __future__ import annotations

import importlib
import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coda_lab.programs.gpu_library import python_folder
from tests.framework.agent import PATIENCE_S, Agent
from tests.open_files import many_open_files


@contextmanager
def linked(monkeypatch: pytest.MonkeyPatch, path: Path, **more: float) -> Iterator[tuple[Any, queue.Queue[bytes]]]:
    """A link that says hello, and the packets that it hears."""
    monkeypatch.syspath_prepend(str(python_folder()))
    heard: queue.Queue[bytes] = queue.Queue()
    link = importlib.import_module("coda_torch.link").Link(
        str(path), lambda: {"type": "hello"}, heard.put, lambda: None, **more
    )
    link.start()
    try:
        yield link, heard
    finally:
        link.end()


def test_a_job_with_more_than_1024_open_files_hears_its_orders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with many_open_files():
        agent = Agent(tmp_path / "s")
        with linked(monkeypatch, tmp_path / "s") as (_, heard):
            agent.accept()
            assert agent.hear() == {"type": "hello"}
            agent.say(b"an order")
            assert heard.get(timeout=PATIENCE_S) == b"an order"
        agent.close()


@pytest.mark.parametrize(("silent_s", "is_up"), [(60.0, True), (0.0, False)])
def test_an_agent_is_there_as_long_as_it_speaks(
    silent_s: float, is_up: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The kernel connects to one that accepts nobody, and keeps the socket of one that has hung since."""
    agent = Agent(tmp_path / "s")
    with linked(monkeypatch, tmp_path / "s", silent_s=silent_s) as (link, heard):
        while not link.send({"type": "beat"}):
            time.sleep(0.01)
        assert not link.is_up
        agent.accept()
        agent.say(b"an order")
        heard.get(timeout=PATIENCE_S)
        assert link.is_up is is_up
    agent.close()
