"""A rank whose container its kubelet does not create: it says why in events only, so the job says where to look.

Or that waits for an init container: the job says for which, and how long it may."""

from __future__ import annotations

import pytest

from coda.lifecycle import LifecycleConfig, Progress, Situation, Step, Terms
from coda.lifecycle.event_rules import is_news
from coda.lifecycle.steps import next_step
from coda.model import Phase
from tests.core.gangs import NOW_S, pod, progress, running, situation

CONFIG = LifecycleConfig()
SAID = "its container is not created yet (its image is being pulled, or a volume cannot be mounted)"


def starting(since_s: float, **terms: float) -> Situation:
    late = pod(1, node="n2", creating_since_s=since_s)
    return situation(Phase.STARTING, running(0), late, terms=Terms(replicas=2, **terms))  # type: ignore[arg-type]


def test_a_container_that_is_not_created_for_a_minute_is_told_with_where_to_look() -> None:
    step = next_step(starting(NOW_S - 60), NOW_S, CONFIG)
    assert step.progress.phase is Phase.STARTING
    assert step.progress.reason == "ContainerCreating"
    assert step.progress.message == f"rank 1 on n2: {SAID}; see `kubectl describe pod j-1-1`"
    assert (step.progress.failures, step.progress.disruptions, step.delete) == (0, 0, ())
    assert is_news(progress(Phase.STARTING, reason="Starting"), step.progress)


def test_the_operator_looks_again_at_that_minute_and_not_before() -> None:
    step = next_step(starting(NOW_S - 59), NOW_S, CONFIG)
    assert (step.progress.reason, step.wake_s) == ("Starting", NOW_S + 1)
    told = next_step(starting(NOW_S - 59), NOW_S + 1, CONFIG)
    assert told.progress.reason == "ContainerCreating"
    assert told.wake_s == 990.0 + 1800.0  # the start deadline


def test_it_is_told_of_a_bound_rank_while_others_are_not_bound() -> None:
    now = situation(Phase.LAUNCHED, pod(0, creating_since_s=NOW_S - 60), pod(1, node=None))
    assert next_step(now, NOW_S, CONFIG).progress.message.startswith("rank 0 on n1: its container is not created yet")


def test_what_a_kubelet_complains_of_is_told_first() -> None:
    refused = pod(1, reason="ImagePullBackOff", message="back-off")
    now = situation(Phase.STARTING, pod(0, creating_since_s=NOW_S - 60), refused)
    assert next_step(now, NOW_S, CONFIG).progress.message == "rank 1 on n1 cannot start: ImagePullBackOff: back-off"
    late = situation(Phase.STARTING, *now.pods, terms=Terms(replicas=2, start_deadline_s=10))
    assert "rank 1 on n1 did not start within 10 s: ImagePullBackOff" in next_step(late, NOW_S, CONFIG).progress.message


def test_of_several_the_lowest_rank_that_is_late_is_told() -> None:
    now = situation(Phase.STARTING, pod(0, creating_since_s=NOW_S - 5), pod(1, creating_since_s=NOW_S - 60))
    assert next_step(now, NOW_S, CONFIG).progress.message.startswith("rank 1 on n1: ")


def test_the_start_deadline_says_it_too_and_where_the_events_are_when_the_pod_is_gone() -> None:
    step = next_step(starting(NOW_S - 9, start_deadline_s=10), NOW_S, CONFIG)
    said = "its container was not created (its image was being pulled, or a volume could not be mounted)"
    expected = f"attempt 1: rank 1 on n2 did not start within 10 s: {said}; see `kubectl events --for pod/j-1-1`"
    assert (step.progress.phase, step.progress.message) == (Phase.RESTARTING, expected)
    assert list(step.progress.avoid) == ["n2"]  # rank 0 has its container, on another node


def test_no_node_is_to_blame_if_none_of_the_others_creates_a_container() -> None:
    """A Secret that is missing, or a file server that is away: it is the same on every node."""
    pods = (pod(0, creating_since_s=NOW_S - 9), pod(1, node="n2", creating_since_s=NOW_S - 9))
    now = situation(Phase.STARTING, *pods, terms=Terms(replicas=2, start_deadline_s=10))
    step = next_step(now, NOW_S, CONFIG)
    assert (step.progress.reason, dict(step.progress.avoid)) == ("StartDeadlineExceeded", {})


def test_a_node_that_has_not_taken_its_pod_is_to_blame() -> None:
    now = situation(Phase.STARTING, pod(0), pod(1), terms=Terms(replicas=2, start_deadline_s=10))
    assert list(next_step(now, NOW_S, CONFIG).progress.avoid) == ["n1"]


def preparing(since_s: float, **terms: float) -> Situation:
    late = pod(1, node="n2", preparing="download", preparing_since_s=since_s)
    return situation(Phase.STARTING, running(0), late, terms=Terms(replicas=2, **terms))  # type: ignore[arg-type]


def test_an_init_container_that_runs_for_a_minute_is_named_with_how_long_it_may() -> None:
    early = next_step(preparing(NOW_S - 59), NOW_S, CONFIG)
    assert (early.progress.reason, early.wake_s) == ("Starting", NOW_S + 1)
    told = next_step(preparing(NOW_S - 60), NOW_S, CONFIG).progress
    assert (told.phase, told.reason) == (Phase.STARTING, "PodInitializing")
    said = "its container download runs and the main one waits for it, for spec.startDeadlineSeconds (1800 s) at most"
    assert told.message == f"rank 1 on n2: {said}; see `kubectl logs j-1-1 -c download`"
    assert is_news(progress(Phase.STARTING, reason="Starting"), told)


def test_the_start_deadline_names_it_too_and_what_to_do() -> None:
    step = next_step(preparing(NOW_S - 9, start_deadline_s=10), NOW_S, CONFIG)
    said = "its container download still ran; raise spec.startDeadlineSeconds if it needs more time"
    assert step.progress.message == f"attempt 1: rank 1 on n2 did not start within 10 s: {said}"
    assert (step.progress.phase, step.progress.avoid) == (Phase.RESTARTING, {})  # a download says nothing of its node


def test_what_a_kubelet_does_not_create_is_told_before_what_runs() -> None:
    late = pod(0, preparing="download", preparing_since_s=NOW_S - 90)
    now = situation(Phase.STARTING, late, pod(1, creating_since_s=NOW_S - 60))
    assert next_step(now, NOW_S, CONFIG).progress.reason == "ContainerCreating"


def cannot_start(*reasons: str, retries: int = 3) -> Progress:
    """The progress after the start deadline of a gang whose ranks wait for these reasons, each on a node of its own."""
    pods = [pod(rank, node=f"n{rank}", pinned_to=f"n{rank}", reason=why) for rank, why in enumerate(reasons)]
    terms = Terms(replicas=len(pods), start_deadline_s=10, retries=retries)
    return next_step(situation(Phase.STARTING, *pods, terms=terms), NOW_S, CONFIG).progress


@pytest.mark.parametrize(
    ("reasons", "avoided"),
    [
        pytest.param(("ImagePullBackOff", "ImagePullBackOff"), [], id="nobody can pull it: no node is at fault"),
        pytest.param(("ImagePullBackOff", "ErrImagePull"), [], id="nobody can, and its kubelets say so in turns"),
        pytest.param(("RegistryUnavailable", "ImagePullBackOff"), [], id="nobody reaches its registry"),
        pytest.param(("ImagePullBackOff", "CreateContainerError"), ["n0"], id="another trouble elsewhere"),
        pytest.param(("ImagePullBackOff", ""), ["n0"], id="one cannot"),
        pytest.param(("ImagePullBackOff",), ["n0"], id="nobody else tried"),
        pytest.param(("", "ErrImageNeverPull", "ErrImageNeverPull"), ["n1", "n2"], id="two nodes lack it"),
        pytest.param(("ErrImageNeverPull", "ErrImageNeverPull"), ["n0", "n1"], id="other nodes may have it"),
    ],
)
def test_nodes_are_avoided_for_what_other_nodes_may_do_better(reasons: tuple[str, ...], avoided: list[str]) -> None:
    after = cannot_start(*reasons)
    assert (after.phase, after.reason, sorted(after.avoid)) == (Phase.RESTARTING, "StartDeadlineExceeded", avoided)


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "CreateContainerError"])
def test_what_time_or_another_node_may_mend_is_tried_as_often_as_the_spec_allows(reason: str) -> None:
    """A registry may be away for an hour."""
    pods = [pod(0, attempt=3, reason=reason), pod(1, attempt=3, reason=reason)]
    known = progress(Phase.STARTING, attempt=3, failures=2, reason=reason)
    late = situation(Phase.STARTING, *pods, progress=known, terms=Terms(replicas=2, start_deadline_s=10))
    assert next_step(late, NOW_S, CONFIG).progress.phase is Phase.RESTARTING


def badly_named(phase: Phase, image: str, terms: Terms) -> Step:
    """What follows for a gang whose rank 1 has a container with this image, whose name is invalid."""
    said = "couldn't parse image name"
    bad = pod(1, bad_image=("main", image), reason="InvalidImageName", message=said)
    return next_step(situation(phase, running(0), bad, terms=terms), NOW_S, CONFIG)


@pytest.mark.parametrize("phase", [Phase.LAUNCHED, Phase.STARTING])
def test_an_image_whose_name_is_invalid_ends_the_job_at_once(phase: Phase) -> None:
    step = badly_named(phase, "Train", Terms(replicas=2, images=frozenset({("main", "Train")})))
    said = "rank 1 on n1 cannot start: InvalidImageName: couldn't parse image name; it is not tried again: "
    last = "correct the name of the image of its container main; then delete it and submit it again"
    assert step.progress.message == said + last
    assert (step.progress.phase, step.progress.reason) == (Phase.FAILED, "InvalidImageName")
    assert {one.rank for one in step.delete} == {0, 1}


@pytest.mark.parametrize(
    "template", [pytest.param(("init", "Train"), id="no such container"), pytest.param(("main", "train:1"), id="other")]
)
def test_a_bad_name_that_is_not_the_templates_fails_no_job_for_good(template: tuple[str, str]) -> None:
    """A webhook gave it: a typo of an administrator would else fail the whole queue."""
    terms = Terms(replicas=2, retries=0, images=frozenset({template}))
    step = badly_named(Phase.LAUNCHED, "Train", terms)
    said = "attempt 1: rank 1 on n1 cannot start: InvalidImageName: couldn't parse image name; "
    assert step.progress.message == (
        f"{said}a webhook gave its container main that image, not its template: an administrator mends that"
    )
    after = step.progress
    assert (after.phase, after.reason, after.failures) == (Phase.RESTARTING, "InvalidImageName", 0)
    assert (after.disruptions, after.in_a_row, dict(after.avoid)) == (1, 1, {})


def test_a_container_beside_the_main_one_ends_nothing_whatever_its_image() -> None:
    beside = pod(1, reason="InvalidImageName")
    assert next_step(situation(Phase.STARTING, running(0), beside), NOW_S, CONFIG).progress.phase is Phase.STARTING
