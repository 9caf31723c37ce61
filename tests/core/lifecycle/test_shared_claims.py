"""A rank that is not created, beside ranks on other nodes that mount a claim which most storage allows on one node."""

from __future__ import annotations

from dataclasses import replace

from coda.lifecycle import LifecycleConfig, Terms
from coda.lifecycle.failures import with_trouble
from coda.lifecycle.steps import next_step
from coda.model import Phase
from tests.core.gangs import NOW_S, pod, running, situation

SAID = (
    "its container is not created yet (its image is being pulled, or a volume cannot be mounted); its ranks are on 2 "
    "nodes, and PersistentVolumeClaim ckpt is ReadWriteOnce: most volumes of that kind are mounted on one node only"
)


def test_the_claim_is_named_as_a_cause() -> None:
    late = pod(1, node="n2", creating_since_s=NOW_S - 60)
    now = situation(Phase.STARTING, running(0), late, one_node_claims=("ckpt",))
    told = next_step(now, NOW_S, LifecycleConfig()).progress
    assert (told.reason, told.message) == (
        "ContainerCreating",
        f"rank 1 on n2: {SAID}; see `kubectl describe pod j-1-1`",
    )
    several = with_trouble(now.progress, replace(now, one_node_claims=("a", "b")), NOW_S)
    assert "PersistentVolumeClaims a and b are ReadWriteOnce" in several.message


def test_what_its_kubelet_says_is_told_instead() -> None:
    late = pod(1, node="n2", reason="ImagePullBackOff", creating_since_s=NOW_S - 60)
    now = situation(Phase.STARTING, running(0), late, one_node_claims=("ckpt",))
    assert "ckpt" not in next_step(now, NOW_S, LifecycleConfig()).progress.message


def test_the_attempt_that_ends_for_it_names_the_claim_too() -> None:
    late = pod(1, node="n2", creating_since_s=NOW_S - 60)
    terms = Terms(replicas=2, start_deadline_s=10)
    now = situation(Phase.STARTING, running(0), late, one_node_claims=("ckpt",), terms=terms)
    assert (
        "and PersistentVolumeClaim ckpt is ReadWriteOnce" in next_step(now, NOW_S, LifecycleConfig()).progress.message
    )
