"""What counts as a mini-batch, for loops as people write them. In virtual time."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

from coda_lab.programs.gpu_library import python_folder

Act = tuple[str, float | str]
"""("work", seconds), ("backward", ""), or ("step", the optimizer's name)."""

Loop = Iterator[Act]


def trained(optimizer: str, seconds: float, *, steps: int = 1, backwards: int = 1) -> list[Act]:
    """Work, gradients, and steps of an optimizer of 10 ms each."""
    part: list[Act] = [("work", seconds / backwards), ("backward", "")]
    return part * backwards + [("step", optimizer), ("work", 0.01)] * steps


def plain() -> Loop:
    while True:
        yield from trained("adam", 0.5)


def groups(count: int) -> Callable[[], Loop]:
    def loop() -> Loop:
        while True:
            yield from trained("adam", 0.5, steps=count)

    return loop


def accumulated() -> Loop:
    while True:
        yield from trained("adam", 0.5, steps=2, backwards=8)


def turns(*optimizers: str) -> Callable[[], Loop]:
    def loop() -> Loop:
        while True:
            for one in optimizers:
                yield from trained(one, 0.2 if one == "generator" else 0.1)

    return loop


def together() -> Loop:
    """Matrices by one, all else by another, after one backward pass."""
    while True:
        yield from trained("muon", 0.5)
        yield ("step", "adamw")


def phases() -> Loop:
    """Each fold of a cross-validation has its own."""
    for fold in range(1000):
        for _ in range(30):
            yield from trained(f"adam of fold {fold}", 0.1)


def meta() -> Loop:
    """Four tasks, each with an optimizer of its own for five steps, then one step for all."""
    task = 0
    while True:
        for _ in range(4):
            task += 1
            for _ in range(5):
                yield from trained(f"sgd of task {task}", 0.02)
        yield from trained("outer", 0.1)


def by_turns_of_a_thousand() -> Loop:
    while True:
        for one in ("critic", "actor"):
            for _ in range(1000):
                yield from trained(one, 0.1)


def with_a_rare_one() -> Loop:
    """A temperature that is learned once an epoch."""
    while True:
        for _ in range(500):
            yield from trained("adam", 0.1)
        yield from trained("temperature", 0.001)


def within_backward() -> Loop:
    """Each parameter has an optimizer that steps as soon as its gradient is there."""
    while True:
        yield ("work", 0.1)
        yield ("backward", "")
        for parameter in range(100):
            yield ("work", 0.001)
            yield ("step", f"of parameter {parameter}")


def skipping() -> Loop:
    """A gradient scaler leaves the step out where a number is too large."""
    at = 0
    while True:
        yield from trained("adam", 0.2, steps=0 if at % 50 == 9 else 1)
        at += 1


def by_hand() -> Loop:
    """Gradients without autograd, as of evolution strategies."""
    while True:
        yield from trained("adam", 0.1, backwards=1, steps=1)[0:1]
        yield ("step", "adam")


def recorded() -> Loop:
    """A few mini-batches before the recording, then graphs alone."""
    for _ in range(11):
        yield from trained("adam", 0.1)
    while True:
        yield ("work", 0.1)
        yield ("step", "adam")


def told(loop: Callable[[], Loop], *, acts: int, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the last mini-batches took, at most 60 of them."""
    monkeypatch.syspath_prepend(str(python_folder()))
    now_s = 0.0
    clock: Any = importlib.import_module("coda_torch.steps").StepClock(lambda: now_s)
    optimizers: dict[str, object] = {}
    took: list[float] = []
    for kind, what in islice(loop(), acts):
        if kind == "work":
            now_s += float(what)
        elif kind == "backward":
            clock.gradients()
        elif clock.is_boundary(optimizers.setdefault(str(what), object())):
            took.append(clock.tick() or 0.0)
    return took[1:][-60:]


@pytest.mark.parametrize(
    ("loop", "seconds"),
    [
        pytest.param(plain, 0.51, id="one step"),
        pytest.param(groups(2), 0.52, id="DeepSpeed, with decay and without"),
        pytest.param(groups(24), 0.74, id="DeepSpeed, a group for each layer"),
        pytest.param(groups(300), 3.5, id="DeepSpeed, a group for each parameter"),
        pytest.param(accumulated, 0.52, id="gradients of 8 micro-batches"),
        pytest.param(turns(*["critic"] * 5, "generator"), 0.76, id="WGAN"),
        pytest.param(turns("critic", "generator"), 0.32, id="GAN"),
        pytest.param(turns("generator", "one", "other"), 0.43, id="CycleGAN"),
        pytest.param(turns("critic", "critic", "actor"), 0.33, id="TD3"),
        pytest.param(turns("critic", "actor", "temperature"), 0.33, id="SAC"),
        pytest.param(turns(*(f"layer {at}" for at in range(12))), 1.32, id="a backward pass and a step for each layer"),
        pytest.param(together, 0.51, id="two optimizers, one backward pass"),
        pytest.param(phases, 0.11, id="a new optimizer for each phase"),
        pytest.param(meta, 0.71, id="MAML"),
        pytest.param(by_turns_of_a_thousand, 0.11, id="two by turns of a thousand"),
        pytest.param(with_a_rare_one, 0.11, id="one that steps once an epoch"),
        pytest.param(within_backward, 0.2, id="steps within the backward pass"),
        pytest.param(skipping, 0.21, id="mixed precision"),
        pytest.param(by_hand, 0.1, id="no backward pass at all"),
        pytest.param(recorded, 0.1, id="a recorded backward pass"),
    ],
)
def test_mini_batches_are_whole_iterations(
    loop: Callable[[], Loop], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for one in twenty: where phases change, or a step is left out."""
    took = told(loop, acts=20_000, monkeypatch=monkeypatch)
    assert len(took) >= 20
    others = [one for one in took if abs(one - seconds) > 0.01]
    assert len(others) <= len(took) // 20, took


def test_no_phase_is_deaf_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """By an optimizer of the phase before, 100 s were not heard."""
    assert max(told(phases, acts=20_000, monkeypatch=monkeypatch)) < 0.5


def pauses(took_s: float, shares: Callable[[float], int], monkeypatch: pytest.MonkeyPatch) -> float:
    """Seconds of the pause after a mini-batch. shares: the share at a time since its end."""
    monkeypatch.syspath_prepend(str(python_folder()))
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += max(seconds, 1e-6)

    importlib.import_module("coda_torch.steps").rest(took_s, lambda: shares(now_s), 60.0, lambda: now_s, sleep)
    return now_s


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.2, 3.8), (2.0, 38.0), (10.0, 60.0), (600.0, 60.0)])
def test_a_pause_is_in_proportion_until_an_order_would_end(
    took_s: float, pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 5 %. With a pause of 10 s at most, mini-batches of 2 s had 17 % of the time."""
    assert pauses(took_s, lambda _: 50, monkeypatch) == pytest.approx(pause_s)


def test_a_share_of_0_stands_still_until_it_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pauses(2.0, lambda since_s: 1000 if since_s > 600 else 0, monkeypatch) == pytest.approx(600, abs=0.2)


def test_a_pause_ends_as_soon_as_the_share_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pauses(2.0, lambda since_s: 500 if since_s > 5 else 50, monkeypatch) == pytest.approx(5, abs=0.2)
