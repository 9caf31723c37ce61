from __future__ import annotations

import errno
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.errors import InvalidInput, Outage
from coda_agent.cgroups.layout import Version
from coda_agent.cgroups.limits import LimitChange, cores_in_force, in_kernel_order, read_limit, write_limit
from coda_agent.cgroups.quota import CpuLimit, is_same_limit, limit_for_cores, limit_from_text, rounded_by_systemd
from coda_agent.throttling.core_split import limits_within
from coda_lab.emulators.cgroups.kubelet import Quality, Setup
from coda_lab.emulators.cgroups.tree import V1_DIRECTORY
from tests.agent.cgroups.nodes import SETUPS, UID, node

PERIODS = st.sampled_from([1000, 10_000, 50_000, 100_000, 1_000_000])
LIMITS = st.builds(
    lambda quota, period: CpuLimit(quota_us=quota, period_us=period), st.none() | st.integers(1000, 10**8), PERIODS
)

GARBAGE = ["", "max", "max max", "-1 100000", "999 100000", "5000 0", "1e3 1000", "a b", "٣٣٣٣ 1000", "9" * 5000 + " 1"]


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("max 100000\n", CpuLimit(quota_us=None)),
        ("400000 100000\n", CpuLimit(quota_us=400_000)),
        ("1000 1000000\n", CpuLimit(quota_us=1000, period_us=1_000_000)),
    ],
)
def test_reads_what_the_kernel_says(text: str, limit: CpuLimit) -> None:
    assert limit_from_text(text) == limit


@pytest.mark.parametrize(
    "text", ["", "max", "max max", "-1 100000", "999 100000", "5000 0", "1e3 1000", "a b c", "٣٣٣٣ 1000"]
)
def test_refuses_what_no_kernel_says(text: str) -> None:
    with pytest.raises(InvalidInput):
        limit_from_text(text)


@given(LIMITS)
def test_a_limit_written_and_read_is_the_same(limit: CpuLimit) -> None:
    assert limit_from_text(str(limit)) == limit


@given(LIMITS)
def test_systemd_rounds_up_by_less_than_a_hundredth_of_a_core_and_once(limit: CpuLimit) -> None:
    rounded = rounded_by_systemd(limit)
    assert is_same_limit(rounded, limit)
    assert rounded_by_systemd(rounded) == rounded
    if limit.quota_us is not None:
        slack = 1e-6 + 1 / limit.period_us  # of whole microseconds
        assert limit.cores - slack <= rounded.cores <= max(limit.cores + 0.01, 1000 / limit.period_us) + slack


@given(st.floats(min_value=1e-9, max_value=1e6), PERIODS)
def test_no_quota_is_below_the_kernel_s_floor(cores: float, period_us: int) -> None:
    limit = limit_for_cores(cores, period_us)
    assert limit.quota_us is not None
    assert limit.quota_us == max(1000, round(cores * period_us))


@pytest.mark.parametrize("cores", [0.0, -1.0, math.nan, -math.inf])
def test_no_limit_is_made_of_what_is_no_number_of_cores(cores: float) -> None:
    with pytest.raises(InvalidInput, match="above 0 cores"):
        limit_for_cores(cores, 100_000)


@pytest.mark.parametrize("version", [1, 2])
def test_a_limit_is_written_by_one_write_and_read_back(version: int) -> None:
    n = node(version)
    path = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 8.0}).containers["main"].path
    writes = len(n.tree.log)
    write_limit(n.files, n.layout, path, CpuLimit(quota_us=350_500))
    assert read_limit(n.files, n.layout, path) == CpuLimit(quota_us=350_500)
    assert len(n.tree.log) == writes + 1


def test_what_systemd_made_of_a_limit_is_accepted_and_what_another_wrote_is_not() -> None:
    n = node(2)
    path = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 8.0}).containers["main"].path
    n.tree.switches.texts["*/cpu.max"] = "351000 100000\n"
    write_limit(n.files, n.layout, path, CpuLimit(quota_us=350_500))
    with pytest.raises(Outage, match=r"is 351000 100000 although 200000 100000 was written"):
        write_limit(n.files, n.layout, path, CpuLimit(quota_us=200_000))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("text", ["5", "9" * 4000, "9" * 4000 + " 100000"])
def test_a_limit_that_cannot_be_read_says_which(version: int, text: str) -> None:
    n = node(version)
    path = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 8.0}).path
    n.tree.switches.texts["*"] = text
    with pytest.raises((Outage, OSError), match=UID.replace("-", "_")):
        read_limit(n.files, n.layout, path)


@pytest.mark.parametrize("version", [1, 2])
def test_changes_in_order_are_never_refused_and_never_cut_a_child_short(version: int) -> None:
    n = node(version)
    pod = n.kubelet.start(UID, Quality.GUARANTEED, {"a": 4.0, "b": 2.0})
    paths = {pod.path: 6.0, pod.containers["a"].path: 4.0, pod.containers["b"].path: 2.0}
    for factor in (0.5, 2.0, 0.25, 1.0):
        wanted = {path: limit_for_cores(cores * factor, 100_000) for path, cores in paths.items()}
        now = {path: read_limit(n.files, n.layout, path) for path in paths}
        changes = [LimitChange(path=path, now=now[path], wanted=wanted[path]) for path in sorted(paths)]
        for change in in_kernel_order(changes):
            write_limit(n.files, n.layout, change.path, change.wanted)
            assert n.limit(pod.path) >= max(n.limit(one.path) for one in pod.containers.values() if one.cores)
        assert {path: read_limit(n.files, n.layout, path) for path in paths} == wanted


def test_v1_refuses_the_wrong_order_in_both_directions() -> None:
    n = node(1)
    pod = n.kubelet.start(UID, Quality.GUARANTEED, {"a": 4.0})
    for path, cores in ((pod.path, 2.0), (pod.containers["a"].path, 8.0)):
        with pytest.raises(OSError, match="above its parent") as refused:
            write_limit(n.files, n.layout, path, limit_for_cores(cores, 100_000))
        assert refused.value.errno == errno.EINVAL


def test_what_is_as_wanted_is_not_written_again() -> None:
    limit = CpuLimit(quota_us=251_000)
    assert in_kernel_order([LimitChange(path="a", now=limit, wanted=CpuLimit(quota_us=250_500))]) == ()


FREE = CpuLimit(quota_us=None)


@pytest.mark.parametrize(
    ("version", "pod", "containers", "expected"),
    [
        pytest.param(
            Version.V2, limit_for_cores(8, 100_000), {"p/a": limit_for_cores(8, 100_000)}, {"p": 3.0}, id="v2: the pod"
        ),
        pytest.param(
            Version.V2, FREE, {"p/a": FREE, "p/b": limit_for_cores(2, 100_000)}, {"p": 3.0}, id="v2, mixed: the pod"
        ),
        pytest.param(Version.V1, FREE, {"p/a": FREE, "p/b": FREE}, {"p": 3.0}, id="v1 without limits: the pod"),
        pytest.param(
            Version.V1,
            limit_for_cores(6, 100_000),
            {"p/a": limit_for_cores(4, 100_000), "p/b": limit_for_cores(2, 50_000), "p/pause": FREE},
            {"p/a": 2.0, "p/b": 1.0},
            id="v1: containers in proportion, never the pod",
        ),
        pytest.param(
            Version.V1,
            FREE,
            {"p/a": limit_for_cores(1, 100_000), "p/b": FREE},
            {"p/a": 1.0, "p/b": 3.0},
            id="v1, mixed: small limits stay",
        ),
    ],
)
def test_a_pod_is_kept_within_some_cores(
    version: Version, pod: CpuLimit, containers: dict[str, CpuLimit], expected: dict[str, float]
) -> None:
    limits = limits_within(3.0, version, ("p", pod), containers)
    assert {path: limit.cores for path, limit in limits.items()} == expected
    periods = {"p": pod.period_us, **{path: limit.period_us for path, limit in containers.items()}}
    assert all(limit.period_us == periods[path] for path, limit in limits.items())


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS)
def test_the_cores_in_force_are_the_least_along_the_path(version: int, setup: Setup) -> None:
    here = node(version, setup)
    pod = here.kubelet.start(UID, Quality.BURSTABLE, {"main": 3.0, "sidecar": 1.0, "free": None})

    def cores(name: str) -> float | None:
        return cores_in_force(here.files, here.layout, pod.path, pod.containers[name].id)

    assert (cores("main"), cores("sidecar"), cores("free")) == (3.0, 1.0, math.inf)
    file, text = (f"{V1_DIRECTORY}/{pod.path}/cpu.cfs_quota_us", "350000")
    if version == 2:
        file, text = f"{pod.path}/cpu.max", "350000 100000"
    here.tree.write(file, text)
    assert (cores("main"), cores("free")) == (3.0, 3.5)
    assert cores_in_force(here.files, here.layout, pod.path, "another") is None
    assert cores_in_force(here.files, here.layout, f"{pod.path}x", pod.containers["main"].id) is None
