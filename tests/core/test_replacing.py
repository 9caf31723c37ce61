"""`replace` gives what that of the standard library gives, and refuses classes that it cannot copy."""

import dataclasses
from dataclasses import dataclass, field

import pytest

from coda.replacing import replace
from tests.builders import job


@dataclass(frozen=True, slots=True)
class _Counted:
    name: str
    size: int
    length: int = field(init=False, default=0)


@dataclass(frozen=True, slots=True)
class _Checked:
    name: str
    size: int

    def __post_init__(self) -> None:
        assert self.size > 0


def test_a_copy_equals_that_of_the_standard_library() -> None:
    one = job("a", gpus=4)
    copied = replace(one, attempt=7, wish=None, queued_s=12.5)
    assert copied == dataclasses.replace(one, attempt=7, wish=None, queued_s=12.5) != one
    assert (copied.attempt, copied.id, copied.request) == (7, one.id, one.request)


def test_a_copy_without_changes_is_another_equal_object() -> None:
    one = job("a")
    copied = replace(one)
    assert copied == one
    assert copied is not one


def test_a_name_that_is_no_field_is_refused() -> None:
    with pytest.raises(TypeError, match="no field 'atempt'"):
        replace(job("a"), atempt=2)  # type: ignore[call-arg]


@pytest.mark.parametrize("one", [_Counted("a", 1), _Checked("a", 1)])
def test_a_class_that_computes_more_than_its_arguments_is_refused(one: _Counted | _Checked) -> None:
    with pytest.raises(TypeError, match=r"use dataclasses\.replace"):
        replace(one, size=2)
