"""Certificates of Coda's own authority: when they are good, and what they are good for."""

from __future__ import annotations

import pytest

from coda_kube.certificates import (
    AUTHORITY_S,
    DAY_S,
    LEAF_S,
    SKEW_S,
    KeyPair,
    is_authority,
    is_good,
    new_authority,
    new_leaf,
)

NOW_S = 1_800_000_000.0
AUTHORITY = new_authority(NOW_S)


@pytest.mark.parametrize("serves", [True, False])
def test_a_leaf_is_renewed_when_a_third_of_its_time_is_over(serves: bool) -> None:
    leaf = new_leaf(AUTHORITY, serves=serves, now_s=NOW_S)
    third_s = (LEAF_S + SKEW_S) / 3 - SKEW_S
    assert is_good(leaf, AUTHORITY, now_s=NOW_S)
    assert is_good(leaf, AUTHORITY, now_s=NOW_S + third_s - 10)
    assert not is_good(leaf, AUTHORITY, now_s=NOW_S + third_s + 10)


def test_a_leaf_of_another_authority_or_with_another_key_is_not_good() -> None:
    leaf, other = new_leaf(AUTHORITY, serves=True, now_s=NOW_S), new_leaf(AUTHORITY, serves=True, now_s=NOW_S)
    assert not is_good(leaf, new_authority(NOW_S), now_s=NOW_S)
    assert not is_good(KeyPair(leaf.certificate, other.key), AUTHORITY, now_s=NOW_S)
    assert not is_good(KeyPair(b"nothing", b"nothing"), AUTHORITY, now_s=NOW_S)


def test_an_authority_is_replaced_before_its_leaves_outlive_it() -> None:
    assert is_authority(AUTHORITY, now_s=NOW_S + AUTHORITY_S - 3 * LEAF_S)
    assert not is_authority(AUTHORITY, now_s=NOW_S + AUTHORITY_S - LEAF_S)
    assert not is_authority(KeyPair(b"nothing", AUTHORITY.key), now_s=NOW_S)
    assert DAY_S < LEAF_S < AUTHORITY_S


def test_an_authority_of_a_clock_that_was_ahead_is_none_until_it_begins() -> None:
    ahead = new_authority(NOW_S + 30 * DAY_S)
    assert not is_authority(ahead, now_s=NOW_S)
    assert is_authority(ahead, now_s=NOW_S + 30 * DAY_S - SKEW_S)
