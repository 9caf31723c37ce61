"""Nodes whose GPUs are suspect: by what agents saw, and by what several users say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.correlation.suspect_nodes import (
    CORDON_S,
    MOST_NODES,
    PROGRAM_USERS,
    RUN_PART,
    SAID_USERS,
    WINDOW_S,
    NodeEvidence,
    NodeFailure,
    NodeRun,
    NodeVerdict,
    NodeXid,
    most_cordons,
    suspect_nodes,
)
from coda.diagnosis.xids import XIDS, XidKind, kind_of

NOW_S = 1e6
Evidence = NodeFailure | NodeXid | NodeRun
ECC = "GPU ECC error"
USERS = ("ann", "bob", "eve", "joe", "kim", "lea")


def failed(
    owner: str, node: str = "n1", *, ago_s: float = 60.0, reason: str = ECC, uid: str = "", xid: int | None = None
) -> NodeFailure:
    return NodeFailure(
        uid=uid or f"{owner}-{node}-{ago_s}-{reason}",
        owner=owner,
        node=node,
        reason=reason,
        time_s=NOW_S - ago_s,
        xid=xid,
    )


def said(node: str = "n1", *, users: int = SAID_USERS, ago_s: float = 60.0, reason: str = ECC) -> list[NodeFailure]:
    """Logs of that many users that name the node's GPUs."""
    return [failed(owner, node, ago_s=ago_s, reason=reason) for owner in USERS[:users]]


def saw(xid: int, node: str = "n1", *, ago_s: float = 60.0, first_ago_s: float = 0.0) -> NodeXid:
    first_s = NOW_S - max(ago_s, first_ago_s)
    return NodeXid(node=node, gpu="GPU-1", xid=xid, first_s=first_s, time_s=NOW_S - ago_s)


def ran(node: str = "n1", *, began_ago_s: float, lasted_s: float = 600.0) -> NodeRun:
    return NodeRun(node=node, began_s=NOW_S - began_ago_s, ended_s=NOW_S - began_ago_s + lasted_s)


def judge(*evidence: Evidence, nodes: int = 40, watched: str = "", **cleared_s: float) -> NodeVerdict:
    return suspect_nodes(
        NodeEvidence(
            failures=[one for one in evidence if isinstance(one, NodeFailure)],
            xids=[one for one in evidence if isinstance(one, NodeXid)],
            runs=[one for one in evidence if isinstance(one, NodeRun)],
            watched=frozenset(watched.split()),
            cleared_s=cleared_s,
        ),
        nodes,
        NOW_S,
    )


def cordoned(*evidence: Evidence, nodes: int = 40, watched: str = "", **cleared: float) -> list[str]:
    return [cordon.node for cordon in judge(*evidence, nodes=nodes, watched=watched, **cleared).cordons]


# --- the attack: users who agree to lie ------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [2, 40, 400])
@pytest.mark.parametrize("reason", [ECC, "CUDA failure", "CUDA init failed"])
def test_two_users_who_lie_about_every_node_take_none(nodes: int, reason: str) -> None:
    lies = [failed(owner, f"n{n:03}", reason=reason) for n in range(nodes) for owner in ("eve", "mallory")]
    assert cordoned(*lies, nodes=nodes) == []


def test_many_who_lie_take_a_fiftieth_and_none_where_agents_watch() -> None:
    lies = [one for n in range(100) for one in said(f"n{n:02}", users=6, ago_s=1000.0 - n)]
    assert cordoned(*lies, nodes=100) == ["n00", "n01"]
    everywhere = " ".join(f"n{n:02}" for n in range(100))
    assert cordoned(*lies, nodes=100, watched=everywhere) == []
    inits = [one for n in range(100) for one in said(f"n{n:02}", reason="CUDA init failed", ago_s=1000.0 - n)]
    assert cordoned(*inits, nodes=100, watched=everywhere) == ["n00", "n01"]


def test_users_whose_programs_cause_xids_are_no_stronger_than_those_who_lie() -> None:
    made = [
        failed(owner, f"n{n:02}", ago_s=1000.0 - n, reason="Invalid memory access", xid=31)
        for n in range(100)
        for owner in USERS[:PROGRAM_USERS]
    ]
    assert cordoned(*made, nodes=100) == ["n00", "n01"]
    assert cordoned(*[one for one in made if one.owner != "ann"], nodes=100) == []


def test_lies_never_push_out_what_an_agent_saw() -> None:
    lies = [one for n in range(10, 60) for one in said(f"n{n}", ago_s=3000.0)]
    real = [saw(79, f"n{n}", ago_s=10.0) for n in range(4)]
    assert cordoned(*lies, nodes=40) == ["n10"]
    assert cordoned(*lies, *real, nodes=40) == ["n0", "n1", "n2", "n3"]


@given(
    liars=st.integers(1, SAID_USERS - 1),
    places=st.lists(st.tuples(st.integers(0, 30), st.floats(1, WINDOW_S), st.booleans()), max_size=60),
)
def test_fewer_users_than_it_takes_never_cordon_by_words(liars: int, places: list[tuple[int, float, bool]]) -> None:
    lies = [
        failed(USERS[at % liars], f"n{n}", ago_s=ago_s, reason=ECC if is_ecc else "CUDA init failed", uid=str(at))
        for at, (n, ago_s, is_ecc) in enumerate(places)
    ]
    assert judge(*lies).cordons == ()


@given(
    evidence=st.lists(
        st.one_of(
            st.builds(saw, st.sampled_from(sorted(XIDS)), st.sampled_from(["n1", "n2", "n3"]), ago_s=st.floats(1, 9e4)),
            st.builds(
                failed,
                st.sampled_from(USERS),
                st.sampled_from(["n1", "n2", "n3"]),
                ago_s=st.floats(1, 9e4),
                xid=st.sampled_from([None, *sorted(XIDS)]),
            ),
            st.builds(ran, st.sampled_from(["n1", "n2", "n3"]), began_ago_s=st.floats(1, 9e4)),
        ),
        max_size=30,
    ),
    nodes=st.integers(0, 200),
)
def test_a_cordon_ends_in_an_hour_fits_the_share_and_rests_on_no_order(evidence: list[Evidence], nodes: int) -> None:
    found = judge(*evidence, nodes=nodes)
    assert len(found.cordons) <= most_cordons(nodes)
    assert all(NOW_S < one.until_s <= NOW_S + CORDON_S for one in found.cordons)
    names = {one.node for one in found.cordons}
    assert not names & found.probation
    assert len(names) == len(found.cordons)
    assert all(one.until_s not in found.ended.get(one.node, ()) for one in found.cordons)
    assert [one.node for one in judge(*reversed(evidence), nodes=nodes).cordons] == [one.node for one in found.cordons]


# --- what suffices ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("xid", [xid for xid in XIDS if kind_of(xid) is XidKind.HARDWARE and xid != 94])
def test_one_xid_of_the_hardware_is_enough(xid: int) -> None:
    (cordon,) = judge(saw(xid)).cordons
    assert (cordon.node, cordon.seen, cordon.until_s) == ("n1", True, NOW_S - 60 + CORDON_S)
    assert f"Xid {xid} on GPU-1" in cordon.why


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 63, 92, 94, 109, 999])
def test_other_xids_alone_are_not(xid: int) -> None:
    assert cordoned(*[saw(xid, ago_s=ago_s) for ago_s in range(1, 50)]) == []


def seen_by(xid: int, users: int, reason: str = ECC) -> list[NodeFailure]:
    return [failed(owner, reason=reason, xid=xid) for owner in USERS[:users]]


@pytest.mark.parametrize(
    ("evidence", "names"),
    [
        pytest.param(said(users=SAID_USERS), ["n1"], id="the logs of four users"),
        pytest.param(said(users=SAID_USERS - 1), [], id="of three"),
        pytest.param([failed("ann", uid=str(n)) for n in range(50)], [], id="one user, however often"),
        pytest.param([*said(users=2), *said("n2", users=2)], [], id="on two nodes"),
        pytest.param([*said(users=2), *said(users=4, reason="CUDA failure")[2:]], [], id="for two reasons"),
        pytest.param([*said(users=3, ago_s=WINDOW_S), *said(users=4)[3:]], [], id="long ago"),
        pytest.param(said(ago_s=CORDON_S), [], id="time ends it"),
        pytest.param([*said(users=4, ago_s=CORDON_S + 5), failed("lea", ago_s=5)], ["n1"], id="and fails at once"),
        pytest.param(seen_by(94, 2), ["n1"], id="two users met a contained error"),
        pytest.param(seen_by(94, 1), [], id="one met it"),
        pytest.param(seen_by(31, 3, "Invalid memory access"), ["n1"], id="three users met what programs may cause"),
        pytest.param(seen_by(31, 2, "Invalid memory access"), [], id="two did"),
        pytest.param(seen_by(43, 6, "Invalid memory access"), [], id="a consequence proves nothing"),
        pytest.param([saw(79, ago_s=CORDON_S)], [], id="time ends what an agent saw, too"),
    ],
)
def test_what_makes_a_node_suspect(evidence: list[NodeFailure | NodeXid], names: list[str]) -> None:
    assert cordoned(*evidence) == names
    assert cordoned(*reversed(evidence)) == names


def test_an_administrator_ends_it_and_newer_evidence_begins_it_again() -> None:
    assert cordoned(saw(79), *said(), n1=NOW_S - 30) == []
    assert cordoned(*said(users=3), failed("joe", ago_s=20), n1=NOW_S - 30) == []
    assert cordoned(*said(ago_s=20), n1=NOW_S - 30) == ["n1"]
    assert cordoned(saw(79, ago_s=20), n1=NOW_S - 30) == ["n1"]


# --- probation -------------------------------------------------------------------------------------------------------


def test_after_its_hour_a_node_is_on_probation_until_a_run_there_succeeds() -> None:
    old: list[Evidence] = [saw(79, ago_s=CORDON_S + 900), *said("n2", ago_s=CORDON_S + 900)]
    assert judge(*old).cordons == ()
    assert judge(*old).probation == {"n1", "n2"}
    assert judge(*old, ran("n1", began_ago_s=600)).probation == {"n2"}
    again = failed("lea", "n2", ago_s=1)
    assert cordoned(*old, again) == ["n2"]
    assert cordoned(*old, again, ran("n2", began_ago_s=600)) == []
    assert cordoned(*old, saw(79, ago_s=1), ran("n1", began_ago_s=600)) == ["n1"]


def test_a_run_on_another_node_or_before_the_failure_or_of_no_length_proves_nothing() -> None:
    for run in (
        ran("n2", began_ago_s=600),
        ran("n1", began_ago_s=CORDON_S + 901),
        ran("n1", began_ago_s=600, lasted_s=CORDON_S * RUN_PART - 1),
    ):
        assert judge(*said(ago_s=CORDON_S + 900), run).probation == {"n1"}


def test_a_run_on_the_other_gpus_does_not_end_what_an_agent_saw_within_the_hour() -> None:
    """Words are weaker: a run that began after them shows that the GPUs work."""
    run = ran("n1", began_ago_s=1000)
    assert cordoned(saw(79, ago_s=1100), run) == ["n1"]
    assert cordoned(*said(ago_s=1100), run) == []


def test_a_single_success_between_them_parts_failures() -> None:
    early, late = said(ago_s=9000)[:2], said(ago_s=60)[2:]
    assert cordoned(*early, *late) == ["n1"]
    assert cordoned(*early, *late, ran("n1", began_ago_s=5000)) == []


@pytest.mark.parametrize(
    ("nodes", "share", "most"), [(0, 0.1, 0), (1, 0.1, 0), (2, 0.1, 1), (100, 0.1, 10), (9, 0.0, 0)]
)
def test_how_many_nodes_may_be_cordoned(nodes: int, share: float, most: int) -> None:
    assert most_cordons(nodes, share) == most
    assert most_cordons(100_000, 0.1) == MOST_NODES


def test_nodes_that_repeat_an_xid_do_not_take_each_others_place() -> None:
    """Each of three says it again all the time, and the share is one node: who began first stays."""
    began_ago_s = {"n1": 3000.0, "n2": 3100.0, "n3": 2900.0}
    for last in range(60):
        ago_s = {"n1": float(last), "n2": float((last + 20) % 60), "n3": float((last + 40) % 60)}
        seen = [saw(79, node, ago_s=ago_s[node], first_ago_s=began_ago_s[node]) for node in ago_s]
        assert cordoned(*seen, nodes=10) == ["n2"]
        assert sorted(cordoned(*seen, nodes=30)) == ["n1", "n2", "n3"]


def test_what_came_before_a_node_was_trusted_does_not_make_its_xid_older() -> None:
    """It repeats since long; an administrator cleared it, or a run succeeded, and then it came again."""
    seen = [saw(79, "n1", ago_s=10, first_ago_s=9000), saw(79, "n2", ago_s=10, first_ago_s=100)]
    assert cordoned(*seen, nodes=10) == ["n1"]
    assert cordoned(*seen, nodes=10, n1=NOW_S - 50) == ["n2"]
    assert cordoned(*seen, ran("n1", began_ago_s=90, lasted_s=70), nodes=10) == ["n2"]


def test_what_is_not_in_force_is_known_by_its_time_so_that_jobs_forget_it() -> None:
    evidence: list[Evidence] = [saw(79, ago_s=50), failed("ann", "n1", ago_s=100), failed("ann", "n2", ago_s=10)]
    ended = judge(*evidence).ended
    assert ended == {"n1": {NOW_S - 100 + CORDON_S}, "n2": {NOW_S - 10 + CORDON_S}}
    assert judge(*evidence, n1=NOW_S).ended["n1"] == {NOW_S - 100 + CORDON_S, NOW_S - 50 + CORDON_S}


@pytest.mark.parametrize(("made_ago_s", "expected"), [(3600.0, ["n1"]), (30.0, [])])
def test_jobs_that_failed_on_an_earlier_node_of_the_same_name_say_nothing(
    made_ago_s: float, expected: list[str]
) -> None:
    evidence = NodeEvidence(failures=said(), created_s={"n1": NOW_S - made_ago_s})
    assert [cordon.node for cordon in suspect_nodes(evidence, 40, NOW_S).cordons] == expected


def test_what_the_agent_tells_is_of_its_own_machine_however_young_its_node_is() -> None:
    evidence = NodeEvidence(xids=[saw(79)], created_s={"n1": NOW_S - 30})
    assert [cordon.node for cordon in suspect_nodes(evidence, 40, NOW_S).cordons] == ["n1"]
