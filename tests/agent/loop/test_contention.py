"""The whole agent against aggressors on emulated machines: what it does, how fast, and that it releases again."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from coda_lab.emulators.cgroups.kubelet import Quality
from coda_lab.emulators.load import Gpus, Trainer
from coda_lab.emulators.node import EmulatedNode, Work
from tests.agent.loop.conftest import MakeRig
from tests.agent.loop.rig import Rig

CALM_S = 30
"""Long enough to learn how busy a job's GPUs are when nobody disturbs it."""


def victim(node: EmulatedNode, name: str = "train", domain: int = 0, trainer: Trainer | None = None) -> Work:
    return node.start(
        name,
        cores=4,
        gb_per_s=node.machine.profile.peak_bytes_per_s / 1e9 / 8,
        domain=domain,
        trainer=trainer or Trainer(best=0.9, cores_needed=4),
        gpus=1,
        quality=Quality.GUARANTEED,
        labels={"coda.scheduler/throttling": "protect"},
    )


def aggressor(node: EmulatedNode, name: str = "hog", domain: int = 0, times_peak: float = 1.25) -> Work:
    return node.start(name, cores=24, gb_per_s=times_peak * node.machine.profile.peak_bytes_per_s / 1e9, domain=domain)


async def contended(rig: Rig, seconds: int = 60) -> tuple[Work, Work]:
    """A victim that has learned its reference, then an aggressor for `seconds`."""
    train = victim(rig.node)
    await rig.run(CALM_S)
    hog = aggressor(rig.node)
    await rig.run(seconds)
    return train, hog


def is_untouched(rig: Rig) -> bool:
    """True if no limit of the agent is in force."""
    unlimited = all(rig.node.limit_of(work) == 24 for work in rig.node.works.values() if not work.trains)
    return unlimited and "coda-throttle" not in rig.node.machine.groups and not rig.agent.throttles


async def test_a_throttle_comes_within_5_s_and_the_victim_recovers(make_rig: MakeRig) -> None:
    rig = make_rig()
    train, hog = await contended(rig, seconds=6)  # the first second is still the calm one's
    assert rig.told("Throttled")[:2] == ["hog", "train"]
    assert rig.metric("coda_agent_throttle_delay_seconds_count")  # 1 or more
    await rig.run(60)
    assert train.seen_share >= 0.95 * 0.9
    assert rig.metric("coda_agent_throttles") == 2  # the domain's limit, and the pod's membership
    assert rig.node.limit_of(hog) == 24


async def test_constant_load_comes_to_rest(make_rig: MakeRig) -> None:
    rig = make_rig()
    train, _hog = await contended(rig, seconds=180)
    before = len(rig.api.events)
    await rig.run(600)
    assert len(rig.api.events) - before <= 2 * 2  # an event on each of both pods
    assert train.seen_share >= 0.95 * 0.9


async def test_when_the_cause_ends_the_throttles_go_step_by_step(make_rig: MakeRig) -> None:
    rig = make_rig()
    _train, hog = await contended(rig)
    hog.bytes_per_s = 1e9
    await rig.run(75)
    assert "hog" in rig.told("ThrottleReleased")
    await rig.run(240 - 75)
    assert is_untouched(rig)


async def test_throttles_that_help_nobody_are_undone(make_rig: MakeRig) -> None:
    rig = make_rig()
    train = victim(rig.node)
    await rig.run(CALM_S)
    aggressor(rig.node)
    train.gpus = Gpus(Trainer(best=0.5, cores_needed=4, bandwidth_weight=0.0), seed=0)  # it suffers from something else
    await rig.run(120)
    assert "hog" in rig.told("Throttled")
    assert is_untouched(rig)
    done = len(rig.api.events)
    await rig.run(120)
    assert len(rig.api.events) == done


@pytest.mark.parametrize(
    ("profile", "version", "means"),
    [
        ("intel", 2, "bandwidth"),
        ("intel-per-thread", 2, "bandwidth"),
        ("intel-mib", 2, "bandwidth"),
        ("amd", 2, "bandwidth"),
        ("snc2", 2, "bandwidth"),
        ("intel", 1, "bandwidth"),
        ("mbm-only", 2, "cores"),
        ("mbm-only", 1, "cores"),
        ("mba-only", 2, "nothing"),
        ("l3-only", 2, "nothing"),
        ("not-mounted", 2, "nothing"),
        ("not-mounted", 1, "nothing"),
    ],
)
async def test_each_kind_of_machine_is_throttled_by_what_it_has(
    make_rig: MakeRig, profile: str, version: int, means: str
) -> None:
    rig = make_rig(profile, version)
    train, hog = await contended(rig, seconds=90)
    limited = "coda-throttle" in rig.node.machine.groups, rig.node.limit_of(hog) < 24
    assert limited == {"bandwidth": (True, False), "cores": (False, True), "nothing": (False, False)}[means]
    if means == "nothing":
        assert rig.metric("coda_agent_sensor_up", sensor="bandwidth") == 0
        assert not rig.api.events
    else:
        assert train.seen_share >= 0.95 * 0.9
    await rig.stop()
    rig.start()
    assert is_untouched(rig)


async def test_where_caches_share_controllers_a_busy_cache_is_none_and_a_full_socket_is(make_rig: MakeRig) -> None:
    """AMD: eight caches of 40 GB/s in two sockets. A limit is set in all caches of the socket."""
    rig = make_rig("amd", numa_nodes=2, peak_gb_per_s={0: 160.0, 8: 160.0})
    train = victim(rig.node)
    await rig.run(CALM_S)
    first = aggressor(rig.node, times_peak=1.5)
    await rig.run(60)
    assert train.seen_share < 0.85  # its own cache is full, the memory is not
    assert is_untouched(rig)
    hogs = [first, *(aggressor(rig.node, f"hog-{domain}", domain, times_peak=1.5) for domain in (1, 2, 3))]
    await rig.run(60)
    assert train.seen_share >= 0.95 * 0.9
    limits = rig.node.machine.groups["coda-throttle"].values["MB"]
    assert {domain for domain, value in limits.items() if value < 2048} == {0, 1, 2, 3}
    assert {work.name for work in hogs} >= set(rig.told("Throttled")) - {"train"}
    await rig.stop()
    rig.start()
    assert is_untouched(rig)


@pytest.mark.parametrize("why", ["not opted in", "opted out", "exclusive cores", "in system namespace"])
async def test_pods_that_must_not_be_throttled_are_left_alone(
    make_rig: MakeRig, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    if why == "not opted in":
        rig.api.namespaces = frozenset()
    if why == "exclusive cores":
        give_own_cores(rig, "hog", monkeypatch)
    train = victim(rig.node)
    await rig.run(CALM_S)
    labels = {"coda.scheduler/throttling": "false"} if why == "opted out" else {}
    hog = rig.node.start("hog", cores=24, gb_per_s=200, labels=labels)
    if why == "in system namespace":
        hog.namespace = "kube-system"
        rig.api.namespaces = frozenset({"default", "kube-system"})
    await rig.run(60)
    assert train.seen_share < 0.85
    assert is_untouched(rig)


def give_own_cores(rig: Rig, pod: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the static CPU manager."""
    granted = rig.node.grants

    def exclusive() -> tuple[object, ...]:
        return tuple(
            replace(one, exclusive_cpus=frozenset({3}) if one.pod == pod else frozenset()) for one in granted()
        )

    monkeypatch.setattr(rig.node, "grants", exclusive)


@pytest.mark.parametrize("after_s", range(0, 10, 2))
async def test_a_pod_with_cores_of_its_own_is_not_throttled_while_it_is_new(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, after_s: int
) -> None:
    rig = make_rig()
    give_own_cores(rig, "hog", monkeypatch)
    victim(rig.node)
    await rig.run(CALM_S + after_s)  # the kubelet's list is asked for every 10 s
    rig.node.start("hog", cores=24, gb_per_s=200)
    await rig.run(15)
    assert not rig.told("Throttled")


async def test_other_programs_groups_survive_everything(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.node.machine.add(None, "BE")
    await contended(rig)
    await rig.stop()
    assert set(rig.node.machine.groups) == {"BE"}
    rig.start()


async def test_where_others_hold_every_class_of_service_cores_are_halved_instead(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.kill()
    for number in range(rig.node.machine.profile.closids - 1):
        rig.node.machine.add(None, f"theirs-{number}")
    rig.start()
    train, hog = await contended(rig)
    assert rig.node.limit_of(hog) < 24
    assert train.seen_share >= 0.95 * 0.9
    assert any("no class of service" in lack for lack in rig.api.profiles[-1]["status"]["lacks"])


async def test_a_killed_agents_throttles_are_put_back_by_the_next_one(make_rig: MakeRig) -> None:
    rig = make_rig("mbm-only")
    _train, hog = await contended(rig)
    assert rig.node.limit_of(hog) < 24
    rig.kill()
    rig.start()
    assert rig.node.limit_of(hog) == 24
    assert rig.metric("coda_agent_restored_at_start") is not None


# --- without sensors nothing new is done, and what stands is let go ---------------------------------------------------


def lose_gpus(rig: Rig) -> None:
    for device in rig.node.state.devices:
        rig.node.state.lose(device.uuid)


def lose_bandwidth(rig: Rig) -> None:
    rig.node.machine.switches.words["*mbm_total_bytes"] = "Unavailable\n"


def lose_api(rig: Rig) -> None:
    rig.api.away_since_s = rig.node.now.monotonic_s


@pytest.mark.parametrize("lose", [lose_gpus, lose_bandwidth, lose_api])
async def test_throttles_end_when_their_sensors_are_gone(make_rig: MakeRig, lose: Callable[[Rig], None]) -> None:
    rig = make_rig()
    await contended(rig)
    assert not is_untouched(rig)
    lose(rig)
    await rig.run(130)  # the API's silence is noticed after 60 s, and everything is let go 60 s later
    assert is_untouched(rig)


@pytest.mark.parametrize("lose", [lose_gpus, lose_bandwidth])
async def test_nothing_new_is_done_without_sensors(make_rig: MakeRig, lose: Callable[[Rig], None]) -> None:
    rig = make_rig()
    victim(rig.node)
    await rig.run(CALM_S)
    lose(rig)
    aggressor(rig.node)
    await rig.run(60)
    assert is_untouched(rig)
    assert not rig.api.events
    sensor = "nvml" if lose is lose_gpus else "bandwidth"
    assert math.isclose(rig.metric("coda_agent_sensor_up", sensor=sensor) or 0.0, 0.0)


async def test_ten_minutes_without_the_api_server_change_nothing_and_are_told(make_rig: MakeRig) -> None:
    rig = make_rig()
    victim(rig.node)
    await rig.run(CALM_S)
    lose_api(rig)
    await rig.run(61)
    aggressor(rig.node)
    await rig.run(600)
    assert is_untouched(rig)
    assert (rig.metric("coda_agent_pods_age_seconds") or 0) > 600


# --- the NodeProfile: who must undo the throttles of a dead agent learns them from it ---------------------------------


async def test_the_first_throttle_is_told_at_once(make_rig: MakeRig) -> None:
    rig = make_rig()
    await contended(rig, seconds=15)
    assert rig.api.profiles[-1]["status"]["throttleCount"] == 1  # pod, by two entries: its group, and the group's limit
    assert "limited to 90 %: training jobs suffer" in rig.api.events[0]["message"]


async def test_an_agent_that_ends_leaves_no_profile_that_tells_of_throttles(make_rig: MakeRig) -> None:
    rig = make_rig()
    await contended(rig)
    await rig.stop()
    status = rig.api.profiles[-1]["status"]
    assert (status["throttleCount"], status["throttles"]) == (0, [])
    rig.start()


async def test_an_agent_whose_last_write_failed_says_all_the_same_that_its_throttles_are_undone(
    make_rig: MakeRig,
) -> None:
    rig = make_rig()
    await contended(rig)
    lose_api(rig)
    await rig.run(90)  # the profile was not written again
    rig.api.away_since_s = None
    await rig.stop()
    assert rig.api.profiles[-1]["status"]["throttleCount"] == 0
    rig.start()


async def test_without_an_api_server_the_end_undoes_all_the_same(make_rig: MakeRig) -> None:
    rig = make_rig("mbm-only")
    _train, hog = await contended(rig)
    lose_api(rig)
    await rig.stop()
    assert rig.node.limit_of(hog) == 24
    rig.start()


async def test_a_profile_that_somebody_deleted_is_there_again_within_the_hour(make_rig: MakeRig) -> None:
    rig = make_rig()
    await rig.run(10)
    rig.api.profiles.clear()
    rig.node.advance(3600)
    await rig.run(10)
    assert len(rig.api.profiles) == 1


async def test_an_agent_without_throttles_tells_nothing_twice_within_a_minute(make_rig: MakeRig) -> None:
    rig = make_rig()
    victim(rig.node)
    await rig.run(50)
    assert len(rig.api.profiles) == 1


# --- modes, restarts, and what the tuning may ask ---------------------------------------------------------------------


async def test_observing_tells_in_the_log_what_would_be_limited_and_limits_nothing(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig(throttle="observe")
    with caplog.at_level(logging.INFO, logger="coda_agent.loop"):
        train, _hog = await contended(rig)
    assert train.seen_share < 0.85
    assert is_untouched(rig)
    assert not rig.api.events
    assert any("hog: only observed, not done: memory bandwidth on socket 0 limited" in line for line in caplog.messages)


async def test_switched_off_nobody_is_throttled(make_rig: MakeRig) -> None:
    rig = make_rig(throttle="off")
    train, _hog = await contended(rig)
    assert train.seen_share < 0.85
    assert is_untouched(rig)
    assert rig.metric("coda_agent_actions_total", means="Bandwidth", reason="Contended") == 0


@pytest.mark.parametrize("ends", ["stopped", "killed"])
async def test_an_agent_that_starts_again_knows_its_jobs(make_rig: MakeRig, ends: str) -> None:
    """One that forgets how busy they are alone throttles nobody under standing contention."""
    rig = make_rig()
    train, _hog = await contended(rig)
    await rig.stop() if ends == "stopped" else rig.kill()
    rig.start()
    told = len(rig.api.events)
    await rig.run(15)
    assert train.seen_share >= 0.95 * 0.9
    assert rig.api.events[told]["message"].endswith("training jobs suffer from memory traffic")


async def test_stored_references_that_are_garbage_are_none(make_rig: MakeRig) -> None:
    rig = make_rig()
    await contended(rig)
    rig.kill()
    (rig.folder / "state" / "references.json").write_bytes(b'[{"job": 1}]')
    rig.start()
    await rig.run(30)
    assert rig.agent.throttles  # a trial found the aggressor all the same


async def test_the_tuning_can_ask_whether_a_window_was_disturbed(make_rig: MakeRig) -> None:
    rig = make_rig()
    train = victim(rig.node)
    await rig.run(CALM_S)
    calm_s = rig.node.now.monotonic_s
    assert rig.loop.eliminator.disturbed_at_s(train.uid) is None
    aggressor(rig.node)
    await rig.run(10)
    assert (rig.loop.eliminator.disturbed_at_s(train.uid) or 0) > calm_s
    await rig.run(200)
    assert (rig.loop.eliminator.disturbed_at_s(train.uid) or 0) < rig.node.now.monotonic_s - 60
