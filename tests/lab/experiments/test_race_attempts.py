"""Attempts as their pods tell them: whole, in part, refused, rolled back."""

from __future__ import annotations

from coda_lab.experiments.race.attempts import Attempts
from tests.lab.experiments.race_objects import pod, rank_pod


class Scene:
    """The attempts of a job of two ranks, at a time of the test's choice."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.attempts = Attempts(lambda _job: 2, now=lambda: self.now_s)

    def see(self, at_s: float, *pods: dict[str, object]) -> None:
        self.now_s = at_s
        for each in pods:
            self.attempts.on_pod(None, each)

    def gone(self, at_s: float, *pods: dict[str, object]) -> None:
        self.now_s = at_s
        for each in pods:
            self.attempts.on_pod(each, None)


def test_a_gang_is_partial_from_its_first_bind_to_its_last() -> None:
    scene = Scene()
    scene.see(100, rank_pod(0), rank_pod(1))
    scene.see(101, rank_pod(0, node="n1"))
    scene.see(103.5, rank_pod(1, node="n2"))
    scene.see(120, rank_pod(0, node="n1", phase="Succeeded"), rank_pod(1, node="n2", phase="Succeeded"))
    longest = scene.attempts.longest_partial()
    assert longest is not None
    assert (longest.number, longest.partial_s(200), longest.live) == (1, 2.5, set())
    assert scene.attempts.hit == ()


def test_a_partial_gang_ends_when_the_last_of_its_pods_is_told_to_end() -> None:
    scene = Scene()
    scene.see(100, rank_pod(0, node="n1"), rank_pod(1))
    scene.see(104, rank_pod(0, node="n1", deleting=True), rank_pod(1, deleting=True))
    scene.gone(109, rank_pod(0, node="n1", deleting=True), rank_pod(1, deleting=True))
    (attempt,) = scene.attempts.by_key.values()
    assert attempt.partial_s(200) == 4.0


def test_a_gang_that_is_never_whole_stays_partial() -> None:
    scene = Scene()
    scene.see(100, rank_pod(0, node="n1"), rank_pod(1))
    (attempt,) = scene.attempts.by_key.values()
    assert attempt.partial_s(160) == 60.0


def test_a_refused_rank_hits_its_attempt_until_all_its_pods_are_told_to_end() -> None:
    scene = Scene()
    scene.see(100, rank_pod(0, node="n1"), rank_pod(1, node="n2", phase="Failed", reason="OutOfcpu"))
    (hit,) = scene.attempts.hit
    assert (hit.refused, hit.live, hit.roll_back_s(107)) == ({1: "OutOfcpu"}, {"j-1-0"}, 7.0)
    scene.see(102, rank_pod(0, node="n1", deleting=True))
    assert (hit.live, scene.attempts.slowest_roll_back_s()) == (set(), 2.0)


def test_attempts_of_one_job_are_told_apart_and_foreign_pods_are_none() -> None:
    scene = Scene()
    scene.see(100, rank_pod(0), rank_pod(0, attempt=2), pod("other"))
    assert set(scene.attempts.by_key) == {("j", 1), ("j", 2)}
