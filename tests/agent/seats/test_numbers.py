"""A resource that once meant one GPU must not come to mean another."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda_agent.gpus.devices import Gpu
from coda_agent.seats.numbers import MOST_NUMBERS, Numbered, Numbers, number_gpus, numbers_from, numbers_json


def gpu(uuid: str, bus: str) -> Gpu:
    return Gpu(uuid=uuid, index=0, minor=0, name="", pci_bus_id=bus, memory_bytes=1)


def plain(numbers: Numbers) -> dict[str, int]:
    return {uuid: one.number for uuid, one in numbers.items()}


A, B, C = gpu("GPU-a", "0000:01:00.0"), gpu("GPU-b", "0000:02:00.0"), gpu("GPU-c", "0000:03:00.0")


@pytest.mark.parametrize(
    ("before", "gpus", "expected"),
    [
        pytest.param([], [C, A], {"GPU-a": 0, "GPU-c": 1}, id="by the bus, not as the driver lists them"),
        pytest.param([A, C], [A, B, C], {"GPU-a": 0, "GPU-c": 1, "GPU-b": 2}, id="a card that was added"),
        pytest.param(
            [A, B, C], [A, C], {"GPU-a": 0, "GPU-b": 1, "GPU-c": 2}, id="a card that is gone keeps its number"
        ),
        pytest.param(
            [A, B, C],
            [A, gpu("GPU-new", B.pci_bus_id), C],
            {"GPU-a": 0, "GPU-c": 2, "GPU-new": 1},
            id="a card that was replaced",
        ),
    ],
)
def test_numbers(before: Sequence[Gpu], gpus: Sequence[Gpu], expected: dict[str, int]) -> None:
    assert plain(number_gpus(number_gpus({}, before), gpus)) == expected


def test_where_all_numbers_were_given_one_of_a_card_that_is_gone_is_given_again() -> None:
    many = [gpu(f"GPU-{number:02}", f"0000:{number:02x}:00.0") for number in range(MOST_NUMBERS + 2)]
    full = number_gpus({}, many)
    assert len(full) == MOST_NUMBERS  # the rest is not shared
    later = number_gpus(full, [*many[:7], *many[8:]])
    assert set(plain(later).values()) == set(range(MOST_NUMBERS))
    assert plain(later)[many[MOST_NUMBERS].uuid] == 7


@given(st.lists(st.lists(st.integers(0, 90), max_size=20, unique=True), max_size=8))
def test_no_two_cards_have_one_number_and_no_card_that_stays_gets_another(rounds: list[list[int]]) -> None:
    numbers: Numbers = {}
    before: set[str] = set()
    for present in rounds:
        gpus = [gpu(f"GPU-{one}", f"bus-{one % 30}") for one in present]
        after = number_gpus(numbers, gpus)
        assert len(set(plain(after).values())) == len(after)
        assert {one.uuid for one in gpus} <= set(after)
        stayed = before & {one.uuid for one in gpus}
        assert {uuid: plain(after)[uuid] for uuid in stayed} == {uuid: plain(numbers)[uuid] for uuid in stayed}
        assert numbers_from(numbers_json(after)) == after
        assert number_gpus(after, gpus) is after
        numbers, before = after, {one.uuid for one in gpus}


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b"7", b'{"a":1}', b'{"a":["x","b"]}', b'{"a":[64,"b"]}', b'{"a":[1,"b"],"c":[1,"d"]}', b"[" * 50000],
)
def test_a_file_that_is_none_of_ours_is_not_believed(content: bytes) -> None:
    assert numbers_from(content) is None


def test_what_is_written_is_read() -> None:
    numbers = {"GPU-a": Numbered(number=3, pci_bus_id="0000:01:00.0")}
    assert numbers_from(numbers_json(numbers)) == numbers
