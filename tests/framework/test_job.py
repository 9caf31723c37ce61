"""What a job says of its memory, and when. In this process, with a torch and a library that a test plays."""

from __future__ import annotations

import atexit
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
    fault: Exception | None = None  # raised by torch's statistics


class Torch:
    """As much of torch as a job asks for."""

    __version__ = "2.11.0"

    def __init__(self, card: Card, uuid: str) -> None:
        self.cuda = SimpleNamespace(
            is_initialized=lambda: True,
            device_count=lambda: 1,
            set_device=lambda _device: None,
            empty_cache=self._empty_cache,
            is_current_stream_capturing=lambda: False,
            get_device_properties=lambda _device: SimpleNamespace(uuid=uuid, total_memory=80 * GIB),
            mem_get_info=lambda _device: ((80 - card.held) * GIB, 80 * GIB),
            _lazy_call=lambda begin: begin(),
        )
        self.autograd = SimpleNamespace(backward=lambda: None)
        self.nn = SimpleNamespace(Module=type("Module", (), {"zero_grad": lambda _: None}))
        self.emptied = 0
        self._C = SimpleNamespace(_cuda_memoryStats=lambda _device: self._statistics(card))

    def _statistics(self, card: Card) -> dict[str, Any]:
        if card.fault is not None:
            raise card.fault
        return {
            "reserved_bytes": {"all": {"current": card.held * GIB}},
            "allocated_bytes": {"all": {"current": card.tensors * GIB}},
            "num_ooms": card.ooms,
        }

    def _empty_cache(self) -> None:
        self.emptied += 1


class Library:
    """Counts, and limits nothing. `paces` and `limits`: what it was told last, each with the device first."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self.paces: tuple[float, ...] = ()
        self.limits: tuple[int, ...] = ()

    def limit(self, *limits: int) -> None:
        self.limits = limits

    def pace(self, *paces: float) -> None:
        self.paces = paces

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
    """A job with an agent at the other end. `step`: an optimizer's; `hello`: the first that it said."""

    card: Card
    agent: Agent
    torch: Torch
    library: Library
    step: Callable[[], None]
    hello: Any = None

    def meet(self) -> None:
        """Hear the job say hello, and answer with an order, so that it is there to send whatever follows."""
        self.agent.accept()
        self.hello = self.agent.hear()
        self.agent.order(0, device=80 * GIB)
        assert self.agent.hear()["type"] in ("beat", "done")


@pytest.fixture
def work(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Work]:
    """It has joined in and met its agent, and has no memory yet. Its parameter: the UUID that torch tells."""
    steps: list[Callable[..., None]] = []
    ends: list[Callable[[], None]] = []
    optimizers: Any = ModuleType("torch.optim.optimizer")
    optimizers.Optimizer = type("Optimizer", (), {"zero_grad": lambda _: None})
    optimizers.register_optimizer_step_post_hook = steps.append
    monkeypatch.setitem(sys.modules, "torch.optim.optimizer", optimizers)
    monkeypatch.delenv("NVIDIA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    monkeypatch.setattr(atexit, "register", ends.append)
    monkeypatch.syspath_prepend(str(python_folder()))
    card = Card()
    agent = Agent(tmp_path / "s")
    torch = Torch(card, getattr(request, "param", "a"))
    library = Library(card)
    importlib.import_module("coda_torch.job").Job(library, str(tmp_path / "s")).join(torch)
    work = Work(card=card, agent=agent, torch=torch, library=library, step=lambda: steps[0](optimizers, (), {}))
    work.meet()
    yield work
    for end in ends:
        end()
    agent.close()


def test_memory_that_goes_round_the_library_is_told_as_torch_counts_it(work: Work) -> None:
    """A guaranteed job may have expandable segments: the limits of those beside it depend on what it says."""
    work.card.held, work.card.counted, work.card.ooms = 40, 0, 3
    work.step()
    assert work.agent.hear()["type"] == "steps"
    work.agent.order(1, drain=True)  # a reason to speak
    (gpu,) = work.agent.hear()["gpus"]
    assert (gpu["gpu"], gpu["device"], gpu["refusals"]) == (GPU, 40 * GIB, 3)


def test_in_a_mini_batch_a_job_says_what_it_keeps_between_them(work: Work) -> None:
    """A limit as large as what is in use in the middle of one would stop it for good, with all its memory."""
    agent, card = work.agent, work.card
    card.held, card.tensors = 60, 10
    work.step()
    assert said(agent.hear()) == ("steps", (60, 10))
    card.tensors = 50
    agent.order(9, device=70 * GIB)
    assert said(agent.hear()) == ("beat", (60, 10))
    card.held, card.tensors = 12, 11
    work.step()
    work.step()
    done = answer(agent)
    assert (said(done), done["id"]) == (("done", (12, 11)), 9)
    card.tensors = 50
    agent.order(10, device=None)
    assert said(answer(agent)) == ("beat", (12, 11))


def test_before_its_first_mini_batch_has_ended_nobody_knows_what_it_keeps(work: Work) -> None:
    work.card.held, work.card.tensors = 60, 50
    work.agent.order(1, device=GIB)
    assert said(work.agent.hear()) == ("beat", (60, None))


def test_a_job_that_holds_nothing_has_reached_its_limit_at_once(work: Work) -> None:
    work.agent.order(7, device=GIB)
    done = work.agent.hear()
    assert (said(done), done["id"]) == (("done", None), 7)


def test_a_new_agent_hears_at_once_what_a_job_has_done_and_holds(work: Work) -> None:
    """Else it would take the job for a newcomer, which has no limit."""
    work.card.held, work.card.tensors = 60, 10
    for _ in range(5):
        work.step()
    work.card.tensors = 50
    work.agent.order(1, device=30 * GIB)
    beat = answer(work.agent)
    assert (beat["count"], said(beat)) == (5, ("beat", (60, 10)))
    work.agent.hang_up()
    work.meet()
    assert (work.hello["count"], said(work.hello)) == (5, ("hello", (60, 10)))


def test_a_limit_is_not_reached_within_one_mini_batch(work: Work) -> None:
    """DeepSpeed steps the optimizer once for each group of parameters, and gradients are still there."""
    work.card.held, work.card.tensors = 60, 50
    for _ in range(3):
        work.torch.autograd.backward()
        work.step()
    work.agent.order(8, device=70 * GIB)
    assert said(answer(work.agent))[0] == "beat"
    work.torch.autograd.backward()
    for _ in range(24):
        work.step()
    work.card.held, work.card.tensors = 12, 11
    work.torch.autograd.backward()
    work.step()
    done = answer(work.agent)
    assert (said(done), done["id"]) == (("done", (12, 11)), 8)


@pytest.mark.parametrize(
    "clear",
    [
        pytest.param(lambda torch: torch.nn.Module().zero_grad(), id="by the model"),
        pytest.param(lambda torch: torch.autograd.backward(), id="by hand, before the next backward pass"),
    ],
)
def test_gradients_come_back_whoever_clears_them(work: Work, clear: Callable[[Torch], None]) -> None:
    """After the step they are still in use, and a backward pass would take the host memory that the last one had."""
    work.card.held = 60
    work.torch.autograd.backward()
    work.step()
    work.agent.order(1, device=70 * GIB)
    assert answer(work.agent)["type"] == "beat"
    before = work.torch.emptied
    clear(work.torch)
    assert work.torch.emptied == before + 1


def test_gradients_that_are_gathered_are_left_alone(work: Work) -> None:
    work.card.held = 60
    work.agent.order(1, device=70 * GIB)
    assert answer(work.agent)["type"] == "beat"
    work.torch.autograd.backward()
    before = work.torch.emptied
    work.torch.autograd.backward()
    assert work.torch.emptied == before


@pytest.mark.parametrize("work", [""], indirect=True)
def test_a_job_whose_gpu_nobody_names_says_that_no_order_reaches_it(
    capsys: pytest.CaptureFixture[str], work: Work
) -> None:
    """It said `full`, and ran at 5 % for ever, alone on its GPU."""
    assert (work.hello["devices"], work.hello["control"]) == ([""], "none")
    work.agent.hang_up()
    work.meet()
    assert capsys.readouterr().err.splitlines() == [
        "coda: no order reaches this job, for nobody tells which GPU it has: use torch 2.5 or newer"
    ]


PLUGGED = RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats. If you need it, please file ...")


@pytest.mark.parametrize(
    ("ordered", "seat", "share"),
    [
        pytest.param({"share": 700, "hold_s": 60}, "", 50, id="a guest by its order"),
        pytest.param({"share": 20, "hold_s": 60}, "", 20, id="a guest that had less"),
        pytest.param({"share": 0, "hold_s": 60}, "", 50, id="one that stood still does not for ever"),
        pytest.param({"share": 1000, "alone": True, "hold_s": 60}, "", 50, id="one that was alone"),
        pytest.param({"share": 1000, "hold_s": 0}, "50", 50, id="a guest by its seat"),
        pytest.param({"share": 1000, "hold_s": 0}, "", 1000, id="a guaranteed job"),
    ],
)
def test_a_guest_whose_hook_fails_goes_on_at_the_floor(
    work: Work,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ordered: dict[str, Any],
    seat: str,
    share: int,
) -> None:
    """It was set free, at full speed, for ever, beside a job that has the GPU whole."""
    monkeypatch.setenv("CODA_SHARE", seat)
    work.agent.order(1, gpu=GPU, device=80 * GIB, drain=True, **ordered)
    assert work.agent.hear()["type"] == "done"
    work.agent.order(2, device=80 * GIB, drain=True, **ordered)
    assert work.agent.hear()["type"] == "done"
    work.card.fault = ValueError("whatever")
    work.step()
    assert work.agent.hear() == {"v": 1, "type": "hello", "control": "none"}
    device, now, _, _, hold_s, after = work.library.paces
    assert (device, now, hold_s, after) == (-1, share, 0.0, share)
    kept = f"; it goes on at {share // 10} % of its speed" if share < 1000 else ""
    assert f"coda: control of this process ends here{kept}: ValueError" in capsys.readouterr().err


def test_a_job_with_another_allocator_is_paced_and_limited_where_that_calls_cuda_malloc(
    work: Work, capsys: pytest.CaptureFixture[str]
) -> None:
    """As RMM's. Torch refuses to count for it, and no tensor of it can lie in host memory."""
    work.card.held, work.card.fault = 40, PLUGGED
    work.step()
    said = work.agent.hear()
    assert (said["type"], said["control"]) == ("steps", "fraction")
    work.agent.order(1, device=70 * GIB, share=300, hold_s=60)
    told = answer(work.agent)
    (gpu,) = told["gpus"]
    assert (told["control"], gpu["device"], gpu["reserve"], "floor" in gpu) == ("fraction", 40 * GIB, 0, False)
    assert (work.library.limits, work.library.paces[:2]) == ((-1, 70 * GIB, 0), (-1, 300))
    assert capsys.readouterr().err.splitlines() == [
        "coda: torch has another allocator: what it takes past cudaMalloc has no limit, and none lies in host memory"
    ]


def answer(agent: Agent) -> Any:
    """What is said next, but for mini-batches: how often these are told is a matter of time."""
    while (message := agent.hear())["type"] == "steps":
        pass
    return message


def said(message: Any) -> tuple[str, tuple[int, int | None] | None]:
    """The type, and GiB on the device and between mini-batches."""
    gpus = message.get("gpus") or ()
    found = [(gpu["device"] // GIB, gpu["floor"] // GIB if "floor" in gpu else None) for gpu in gpus]
    return message["type"], found[0] if found else None
