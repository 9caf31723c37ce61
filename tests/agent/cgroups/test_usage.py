from __future__ import annotations

import errno
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda_agent.cgroups.usage import (
    CpuRates,
    CpuUse,
    counters_from,
    rates_between,
    read_use,
)
from coda_lab.emulators.cgroups.kubelet import Quality
from tests.agent.cgroups.nodes import UID, Node, node


def used(n: Node, path: str) -> CpuUse:
    use = read_use(n.files, n.layout, path)
    assert use is not None
    return use


@pytest.mark.parametrize("version", [1, 2])
def test_cores_used_and_periods_throttled_are_what_the_load_was(version: int) -> None:
    n = node(version)
    pod = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 2.0, "side": None})
    n.kubelet.demand(UID, "main", 3.0)
    n.kubelet.demand(UID, "side", 1.5)
    before = [used(n, path) for path in (pod.path, pod.containers["main"].path)]
    n.tree.kernel.advance(4.0)
    after = [used(n, path) for path in (pod.path, pod.containers["main"].path)]
    whole, main = (rates_between(old, new, 4.0) for old, new in zip(before, after, strict=True))
    assert whole == CpuRates(cores=3.5, throttled_share=0.0)
    assert main == CpuRates(cores=2.0, throttled_share=1.0)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("name", ["cpu.stat", "cpuacct.usage"])
@pytest.mark.parametrize("text", ["", "garbage", "usage_usec x\n", "\x00\xff", "usage_usec -5\n", "9" * 400])
def test_garbage_is_no_sample(version: int, name: str, text: str) -> None:
    n = node(version)
    path = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 2.0}).path
    n.tree.switches.texts["*/cpu*"] = text
    assert read_use(n.files, n.layout, path) is None


@pytest.mark.parametrize("version", [1, 2])
def test_what_cannot_be_read_is_no_sample(version: int) -> None:
    n = node(version)
    path = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 2.0}).path
    layout = n.layout
    for number in (errno.EIO, errno.ENODEV, errno.EACCES):
        n.tree.switches.errors["read *"] = number
        assert read_use(n.files, layout, path) is None


@given(st.text())
def test_any_text_is_read_without_harm(text: str) -> None:
    assert all(value >= 0 for value in counters_from(text).values())


@pytest.mark.parametrize(
    ("after", "span_s"),
    [
        pytest.param(CpuUse(used_s=9.0, periods=10), 1.0, id="CPU time fell"),
        pytest.param(CpuUse(used_s=11.0, periods=9), 1.0, id="periods fell"),
        pytest.param(CpuUse(used_s=11.0, periods=10), 0.0, id="no time passed"),
        pytest.param(CpuUse(used_s=11.0, periods=10), float("nan"), id="no clock"),
    ],
)
def test_a_counter_that_fell_and_a_clock_that_stands_give_no_rate(after: CpuUse, span_s: float) -> None:
    assert rates_between(CpuUse(used_s=10.0, periods=10), after, span_s) is None


def test_rates_over_parts_of_a_span_add_up_to_its_whole() -> None:
    n = node(2)
    path = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 2.0}).path
    samples = [used(n, path)]
    for cores in (0.5, 1.0, 4.0):
        n.kubelet.demand(UID, "main", cores)
        n.tree.kernel.advance(2.0)
        samples.append(used(n, path))
    parts = [rates_between(old, new, 2.0) for old, new in itertools.pairwise(samples)]
    whole = rates_between(samples[0], samples[-1], 6.0)
    assert whole is not None
    assert [part.cores for part in parts if part] == pytest.approx([0.5, 1.0, 2.0])
    assert whole.cores == pytest.approx(3.5 / 3)
