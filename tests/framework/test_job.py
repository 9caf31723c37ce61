"""What a job says of its memory, and when. In this process, with a torch and a library that a test plays."""

from __future__ import annotations

import atexit
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from coda_lab.programs.gpu_library import python_folder
from tests.framework.agent import Agent

GIB = 2**30
GPU = "GPU-a"


@dataclass
class Card:
    """One GPU of 80 GiB. `held`: what torch has of it; `tensors`: what of that is in use; `counted`: by the library."""

    held: int = 0
    tensors: int = 0
    counted: int | None = None  # None: all of it
    ooms: int = 0


class Torch:
    """As much of torch as a job asks for."""

    __version__ = "2.11.0"

    def __init__(self, card: Card) -> None:
        self.cuda = SimpleNamespace(
            is_initialized=lambda: True,
            device_count=lambda: 1,
            set_device=lambda _device: None,
            empty_cache=lambda: None,
            is_current_stream_capturing=lambda: False,
            get_device_properties=lambda _device: SimpleNamespace(uuid="a", total_memory=80 * GIB),
            _lazy_call=lambda begin: begin(),
        )
        self._C = SimpleNamespace(
            _cuda_memoryStats=lambda _device: {
                "reserved_bytes": {"all": {"current": card.held * GIB}},
                "allocated_bytes": {"all": {"current": card.tensors * GIB}},
                "num_ooms": card.ooms,
            }
        )


class Library:
    """Counts, and limits nothing."""

    def __init__(self, card: Card) -> None:
        self._card = card

    def limit(self, *_: int) -> None:
        pass

    def pace(self, *_: float) -> None:
        pass

    def tidy(self) -> None:
        pass

    def stats(self, _device: int) -> SimpleNamespace:
        counted = self._card.held if self._card.counted is None else self._card.counted
        return SimpleNamespace(
            device_bytes=counted * GIB,
            host_bytes=0,
            reserve_bytes=64 * GIB,
            refusals=0,
            busy_ns=0,
            idle_ns=0,
            launches=10_000,
        )


@dataclass
class Work:
    """A job with an agent at the other end. `step`: ends a mini-batch."""

    card: Card
    agent: Agent
    step: Callable[[], None]
    ends: list[Callable[[], None]] = field(default_factory=list)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Work]:
    """It has joined in, and has no memory yet."""
    steps: list[Callable[..., None]] = []
    ends: list[Callable[[], None]] = []
    optimizers: Any = ModuleType("torch.optim.optimizer")
    optimizers.Optimizer = type("Optimizer", (), {"zero_grad": lambda _: None})
    optimizers.register_optimizer_step_post_hook = steps.append
    monkeypatch.setitem(sys.modules, "torch.optim.optimizer", optimizers)
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    monkeypatch.setattr(atexit, "register", ends.append)
    monkeypatch.syspath_prepend(str(python_folder()))
    card = Card()
    agent = Agent(tmp_path / "s")
    importlib.import_module("coda_torch.job").Job(Library(card), str(tmp_path / "s")).join(Torch(card))
    agent.accept()
    yield Work(card=card, agent=agent, step=lambda: steps[0](optimizers, (), {}))
    for end in ends:
        end()
    agent.close()


def test_memory_that_goes_round_the_library_is_told_as_torch_counts_it(work: Work) -> None:
    """A guaranteed job may have expandable segments: the limits of those beside it depend on what it says."""
    work.card.held, work.card.counted, work.card.ooms = 40, 0, 3
    work.step()
    work.agent.order(1, drain=True)  # a reason to speak
    assert [said["type"] for said in (work.agent.hear(), work.agent.hear())] == ["hello", "steps"]
    (gpu,) = work.agent.hear()["gpus"]
    assert (gpu["gpu"], gpu["device"], gpu["refusals"]) == (GPU, 40 * GIB, 3)
