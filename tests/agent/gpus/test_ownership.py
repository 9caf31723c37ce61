"""Whose a GPU is: every id that a device plugin gives, and every way in which kubelet, API and processes disagree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda_agent.claimed_device import ClaimedDevice
from coda_agent.gpus.allocations import GpuPlace, Grant, places_of
from coda_agent.gpus.devices import Gpu, Instance
from coda_agent.gpus.ownership import Belief, Evidence, NodePod, Ownership, find_owners, holding_of
from coda_agent.gpus.processes import GpuUser

UUID = "GPU-11111111-2222-3333-4444-555555555555"
OTHER = "GPU-66666666-7777-8888-9999-000000000000"
CUT = "GPU-cccccccc-cccc-cccc-cccc-cccccccccccc"
SLICE = "MIG-aaaaaaaa-0000-0000-0000-000000000000"


def gpu(uuid: str, minor: int) -> Gpu:
    return Gpu(
        uuid=uuid, index=9 - minor, minor=minor, name="A100", pci_bus_id=f"0000:0{minor}:00.0", memory_bytes=None
    )


def part(uuid: str, gpu_instance: int) -> Instance:
    return Instance(uuid=uuid, gpu_uuid=CUT, gpu_instance=gpu_instance, compute_instance=0, memory_bytes=1)


WHOLE = gpu(UUID, 0)
SECOND = gpu(OTHER, 1)
IN_PARTS = replace(gpu(CUT, 2), mig=True, instances=(part(SLICE, 5), part("MIG-bbbb", 9)))
GPUS = (WHOLE, SECOND, IN_PARTS)


def grant(
    *ids: str, pod: str = "train", resource: str = "nvidia.com/gpu", claimed: Sequence[ClaimedDevice] = ()
) -> Grant:
    return Grant(
        namespace="vision",
        pod=pod,
        container="main",
        device_ids=tuple((resource, one) for one in ids),
        claimed=tuple(claimed),
    )


@pytest.mark.parametrize(
    ("device_id", "expected"),
    [
        pytest.param(UUID, [UUID], id="a GPU by UUID"),
        pytest.param(f"{UUID}::3", [UUID], id="a time slice of NVIDIA's plugin"),
        pytest.param(SLICE, [SLICE], id="a MIG slice by UUID"),
        pytest.param(f"{SLICE}::0", [SLICE], id="a time slice of a MIG slice"),
        pytest.param(f"MIG-{CUT}/5/0", [SLICE], id="a MIG slice as old drivers name it"),
        pytest.param(f"MIG-{CUT}/5/1", [], id="a compute instance that is not there"),
        pytest.param("nvidia1", [OTHER], id="GKE: by minor"),
        pytest.param("nvidia1/vgpu2", [OTHER], id="GKE: a time slice"),
        pytest.param("nvidia2/gi9", ["MIG-bbbb"], id="GKE: a MIG slice"),
        pytest.param("nvidia2/gi9/vgpu1", ["MIG-bbbb"], id="GKE: a time slice of a MIG slice"),
        pytest.param("nvidia7", [], id="a minor that is not there"),
        pytest.param("GPU-elsewhere", [], id="a GPU of another node"),
        pytest.param(f"{UUID}::", [], id="half a replica"),
        pytest.param("", [], id="nothing"),
    ],
)
def test_a_device_id_names_a_place(device_id: str, expected: list[str]) -> None:
    assert [place.uuid for place in places_of(grant(device_id), GPUS, {})] == expected


def test_a_renamed_resource_is_known_by_its_uuids_but_not_by_minors() -> None:
    assert places_of(grant(UUID, resource="example.org/fast"), GPUS, {}) == (GpuPlace(gpu_uuid=UUID),)
    assert places_of(grant("nvidia1", resource="example.org/nic"), GPUS, {}) == ()


def test_a_claimed_device_is_found_through_its_resource_slice() -> None:
    claim = ClaimedDevice(driver="gpu.nvidia.com", pool="node-1", device="gpu-0")
    assert places_of(grant(claimed=[claim]), GPUS, {claim: OTHER}) == (GpuPlace(gpu_uuid=OTHER),)
    assert places_of(grant(claimed=[claim]), GPUS, {}) == ()


def test_a_slice_may_be_tuned_where_it_is_known_how_busy_it_is() -> None:
    for is_known in (False, True):
        instances = tuple(replace(one, has_utilisation=is_known) for one in IN_PARTS.instances)
        found = owners([grant(SLICE)], {SLICE: [uses(41, TRAIN)]}, gpus=[replace(IN_PARTS, instances=instances)])
        why = None if is_known else f"{SLICE} is a MIG slice, of which no utilisation is measured"
        assert holding_of("uid-1", found).why_not == why


@given(st.text(max_size=60))
def test_no_device_id_is_too_strange(device_id: str) -> None:
    assert len(places_of(grant(device_id, f"nvidia{device_id}", f"{UUID}{device_id}"), GPUS, {})) <= 3


TRAIN = NodePod(uid="uid-1", namespace="vision", name="train")
RIVAL = NodePod(uid="uid-2", namespace="vision", name="rival")


def owners(
    grants: Sequence[Grant],
    users: Mapping[str, Sequence[GpuUser]],
    pods: Sequence[NodePod] = (TRAIN, RIVAL),
    gpus: Sequence[Gpu] = (WHOLE,),
) -> tuple[Ownership, ...]:
    return find_owners(Evidence(gpus=gpus, grants=grants, pods=pods, users=users, uuid_by_claim={}))


def uses(pid: int, pod: NodePod | None) -> GpuUser:
    return GpuUser(pid=pid, pod_uid=None if pod is None else pod.uid)


def test_a_gpu_used_by_the_pod_that_was_given_it_may_be_tuned() -> None:
    found = owners([grant(UUID)], {UUID: [uses(41, TRAIN)]})
    assert [(one.belief, one.why, [owner.pod_uid for owner in one.owners]) for one in found] == [
        (Belief.CONFIRMED, None, ["uid-1"])
    ]
    assert holding_of("uid-1", found).why_not is None


@pytest.mark.parametrize(
    ("grants", "users", "pods", "belief", "why"),
    [
        pytest.param(
            [grant(UUID)], {UUID: []}, [TRAIN], Belief.UNCONFIRMED, f"no process uses {UUID} yet", id="starting"
        ),
        pytest.param(
            [grant(UUID)], {}, [TRAIN], Belief.UNCONFIRMED, f"the processes on {UUID} could not be seen", id="blind"
        ),
        pytest.param(
            [grant(UUID)],
            {UUID: []},
            [],
            Belief.UNCONFIRMED,
            f"{UUID} was granted to vision/train, which the API server does not list here",
            id="a pod the API does not know",
        ),
        pytest.param(
            [grant(UUID)],
            {UUID: [uses(41, TRAIN), uses(7, RIVAL)]},
            [TRAIN, RIVAL],
            Belief.DISPUTED,
            f"process 7 of the pod with uid uid-2 uses {UUID}, which was given to vision/train",
            id="a privileged pod uses what another was given",
        ),
        pytest.param(
            [grant(UUID)],
            {UUID: [uses(9, None)]},
            [TRAIN],
            Belief.DISPUTED,
            f"process 9 of no pod uses {UUID}, which was given to vision/train",
            id="a process of the host",
        ),
        pytest.param(
            [],
            {UUID: [uses(41, TRAIN)]},
            [TRAIN],
            Belief.DISPUTED,
            f"process 41 of the pod with uid uid-1 uses {UUID}, which was given to nobody",
            id="used without being given",
        ),
        pytest.param(
            [grant(UUID)],
            {UUID: [uses(41, TRAIN)]},
            [replace(TRAIN, uid="uid-9")],
            Belief.DISPUTED,
            f"process 41 of the pod with uid uid-1 uses {UUID}, which was given to vision/train",
            id="the successor has the name, the predecessor still runs",
        ),
        pytest.param([], {UUID: []}, [TRAIN], Belief.UNCONFIRMED, f"no process uses {UUID} yet", id="free"),
    ],
)
def test_what_does_not_agree_may_not_be_tuned(
    grants: list[Grant], users: dict[str, list[GpuUser]], pods: list[NodePod], belief: Belief, why: str
) -> None:
    found = owners(grants, users, pods)
    assert [(one.belief, one.why) for one in found] == [(belief, why)]
    assert all(holding_of(pod.uid, found).why_not is not None for pod in pods)


def test_what_a_finished_pod_had_is_free_again() -> None:
    pods = [replace(TRAIN, is_finished=True), RIVAL]
    found = owners([grant(UUID), grant(UUID, pod="rival")], {UUID: [uses(7, RIVAL)]}, pods)
    assert [owner.pod for owner in found[0].owners] == ["rival"]
    assert holding_of("uid-2", found).why_not is None


def test_a_finished_pod_does_not_hide_its_running_successor() -> None:
    found = owners(
        [grant(UUID)], {UUID: [uses(7, RIVAL)]}, [replace(TRAIN, is_finished=True), replace(RIVAL, name="train")]
    )
    assert holding_of("uid-2", found).why_not is None


def test_a_gpu_shared_in_time_slices_belongs_to_both_and_neither_is_tuned() -> None:
    grants = [grant(f"{UUID}::0"), grant(f"{UUID}::1", pod="rival")]
    found = owners(grants, {UUID: [uses(41, TRAIN), uses(7, RIVAL)]})
    assert found[0].belief is Belief.CONFIRMED
    assert holding_of("uid-1", found).why_not == f"{UUID} is shared by vision/rival and vision/train"


def test_two_time_slices_of_one_pod_are_not_shared() -> None:
    found = owners([grant(f"{UUID}::0", f"{UUID}::1")], {UUID: [uses(41, TRAIN)]})
    assert holding_of("uid-1", found).why_not is None


def test_a_mig_slice_has_an_owner_but_is_not_tuned() -> None:
    found = owners([grant(SLICE)], {SLICE: [uses(41, TRAIN)], "MIG-bbbb": []}, gpus=[IN_PARTS])
    assert [(one.place.uuid, one.belief) for one in found] == [
        (SLICE, Belief.CONFIRMED),
        ("MIG-bbbb", Belief.UNCONFIRMED),
    ]
    assert holding_of("uid-1", found).why_not == f"{SLICE} is a MIG slice, of which no utilisation is measured"


def test_one_busy_gpu_of_several_is_enough_but_one_disputed_spoils_all() -> None:
    grants = [grant(UUID, OTHER)]
    both = (WHOLE, SECOND)
    calm = owners(grants, {UUID: [uses(41, TRAIN)], OTHER: []}, gpus=both)
    assert holding_of("uid-1", calm).why_not is None
    assert [place.uuid for place in holding_of("uid-1", calm).places] == [UUID, OTHER]
    spoilt = owners(grants, {UUID: [uses(41, TRAIN)], OTHER: [uses(7, RIVAL)]}, gpus=both)
    assert holding_of("uid-1", spoilt).why_not is not None


def test_a_pod_that_uses_gpus_of_others_is_not_tuned_on_its_own_either() -> None:
    found = owners(
        [grant(UUID), grant(OTHER, pod="rival")],
        {UUID: [uses(41, TRAIN)], OTHER: [uses(42, TRAIN), uses(7, RIVAL)]},
        gpus=(WHOLE, SECOND),
    )
    assert holding_of("uid-1", found).why_not == found[1].why
    assert holding_of("uid-2", found).why_not == found[1].why


def test_a_pod_without_a_gpu_says_so() -> None:
    assert holding_of("uid-7", owners([grant(UUID)], {})).why_not == "it was granted no GPU of this node"


@given(st.permutations([grant(UUID), grant(OTHER, pod="rival"), grant(SLICE, pod="third")]), st.permutations(GPUS))
def test_order_does_not_matter(grants: list[Grant], gpus: list[Gpu]) -> None:
    users = {UUID: [uses(41, TRAIN)], OTHER: [uses(7, None)]}
    assert owners(grants, users, gpus=gpus) == owners(sorted(grants, key=lambda one: one.pod), users, gpus=GPUS)
