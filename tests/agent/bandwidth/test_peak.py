from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.errors import InvalidInput
from coda_agent.bandwidth.dimm_speed import bytes_per_s_from, read_memory_bytes_per_s
from coda_agent.bandwidth.peak import (
    NAME,
    Peak,
    PeakSource,
    choose_peak,
    load_peak,
    machine_name,
    raise_peak,
    save_peak,
    sustained_rates,
)
from coda_agent.host.files import Files
from coda_agent.host.state_dir import StateDir

GB = 1e9
MEASURED = Peak(bytes_per_s={0: 150 * GB, 1: 140 * GB}, source=PeakSource.MEASURED)


DDR4, DDR5 = 0x1A, 0x22


def module(
    locator: str, *, bank: str = "BANK 0", mt_per_s: int = 3200, size: int = 16, width: int = 64, kind: int = DDR4
) -> bytes:
    """One structure of type 17 as SMBIOS 3 has it."""
    body = bytearray(0x28)
    body[0], body[1] = 17, len(body)
    for at, word in ((0x0A, width), (0x0C, size), (0x15, mt_per_s), (0x20, mt_per_s)):
        body[at : at + 2] = word.to_bytes(2, "little")
    body[0x10], body[0x11], body[0x12] = 1, 2, kind
    return bytes(body) + locator.encode() + b"\0" + bank.encode() + b"\0\0"


def dell(modules: int, slots: int, *, mt_per_s: int = 3200, kind: int = DDR4) -> bytes:
    """Two processors, A and B, with so many of their slots filled."""
    names = [(f"{cpu}{n}", 16 if n <= modules else 0) for cpu in "AB" for n in range(1, slots + 1)]
    return b"".join(module(name, bank="Not Specified", size=size, mt_per_s=mt_per_s, kind=kind) for name, size in names)


OTHER = b"\x01\x08\x00\x00\x01\x02\x03\x04Maker\0Product\0\0"
NAMELESS = b"\x02\x04\x00\x00\0\0"
LAST = b"\x7f\x04\x00\x00\0\0"


@pytest.mark.parametrize(
    ("configured", "measured", "memory", "expected"),
    [
        pytest.param(
            90 * GB, MEASURED, 400 * GB, ({0: 90 * GB, 1: 90 * GB}, PeakSource.CONFIGURED), id="configured first"
        ),
        pytest.param(None, MEASURED, 400 * GB, ({0: 150 * GB, 1: 140 * GB}, PeakSource.MEASURED), id="then measured"),
        pytest.param(
            None, None, 400 * GB, ({0: 160 * GB, 1: 160 * GB}, PeakSource.THEORETICAL), id="then 0.8 of memory"
        ),
        pytest.param(
            None,
            Peak(bytes_per_s={0: GB}, source=PeakSource.MEASURED),
            400 * GB,
            ({0: 160 * GB, 1: 160 * GB}, PeakSource.THEORETICAL),
            id="not what was measured of other domains",
        ),
        pytest.param(
            None,
            Peak(bytes_per_s={0: GB, 1: GB}, source=PeakSource.THEORETICAL),
            400 * GB,
            ({0: 160 * GB, 1: 160 * GB}, PeakSource.THEORETICAL),
            id="not a guess that an older agent stored",
        ),
        pytest.param(None, None, None, None, id="unknown"),
    ],
)
def test_the_peak_is_the_first_that_is_known(
    configured: float | None, measured: Peak | None, memory: float | None, expected: tuple[dict[int, float], PeakSource]
) -> None:
    peak = choose_peak((1, 0), configured_bytes_per_s=configured, measured=measured, memory=memory)
    assert (None if peak is None else (peak.bytes_per_s, peak.source)) == expected


def test_without_domains_there_is_no_peak() -> None:
    assert choose_peak((), configured_bytes_per_s=GB, measured=None, memory=GB) is None


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_no_peak_is_made_of_what_is_no_bandwidth(rate: float) -> None:
    with pytest.raises(InvalidInput, match="peak bandwidth of domain 0"):
        choose_peak((0,), configured_bytes_per_s=rate, measured=None, memory=None)


@given(st.dictionaries(st.integers(0, 3), st.none() | st.floats(0, 1e12) | st.just(math.nan)))
def test_a_peak_is_raised_to_what_was_seen_and_never_lowered(rates: dict[int, float | None]) -> None:
    after = raise_peak(MEASURED, rates)
    for domain, before in MEASURED.bytes_per_s.items():
        seen = rates.get(domain)
        assert after.bytes_per_s[domain] == max(before, seen if seen is not None and seen > before else 0)
    assert set(after.bytes_per_s) == set(MEASURED.bytes_per_s)
    assert raise_peak(after, rates) is after


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        pytest.param([9, 9, 9, 9, 9], 9, id="traffic that stays"),
        pytest.param([5, 9, 1, 9, 1, 5], 1, id="readings that came late"),
        pytest.param([1, 9, 8, 9, 8, 9], 8, id="only the last windows count"),
        pytest.param([9, 9, None, 9, 9], None, id="a window without sample"),
    ],
)
def test_only_traffic_of_several_windows_counts_against_a_peak(rates: list[float | None], expected: float) -> None:
    windows = [{0: rate} for rate in rates]
    assert sustained_rates(windows) == {0: expected}
    assert sustained_rates(windows[:4]) == {}


def test_a_kept_peak_is_there_for_the_same_machine_only(tmp_path: Path) -> None:
    disk = StateDir(tmp_path)
    assert load_peak(disk, "a", 400 * GB) is None
    save_peak(disk, "a", 400 * GB, MEASURED)
    assert (load_peak(disk, "a", 400 * GB), load_peak(disk, "b", 400 * GB)) == (MEASURED, None)


@pytest.mark.parametrize(
    ("before", "now", "is_kept"),
    [
        pytest.param(400 * GB, 400 * GB, True, id="the same modules"),
        pytest.param(400 * GB, 350 * GB, False, id="a channel of eight is dead"),
        pytest.param(400 * GB, 600 * GB, False, id="faster modules"),
        pytest.param(400 * GB, None, True, id="the firmware does not tell any more"),
        pytest.param(250 * GB, 250 * GB, True, id="more than the table says: it was measured with the same table"),
        pytest.param(None, 400 * GB, True, id="not stored by an older agent"),
        pytest.param(None, 200 * GB, False, id="not stored, and more than the modules move"),
    ],
)
def test_a_kept_peak_is_there_for_the_same_memory_only(
    tmp_path: Path, before: float | None, now: float | None, is_kept: bool
) -> None:
    """Else a socket that lost half of its modules would never be full again."""
    disk = StateDir(tmp_path)
    save_peak(disk, "a", before, MEASURED)
    assert load_peak(disk, "a", now) == (MEASURED if is_kept else None)


def test_a_peak_that_an_older_agent_kept_is_read(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b'{"machine":"a","bytes_per_s":{"0":150e9,"1":140e9},"source":"Measured"}')
    assert load_peak(StateDir(tmp_path), "a", 400 * GB) == MEASURED


@pytest.mark.parametrize(
    ("before", "now", "is_kept"),
    [
        pytest.param(50 * GB, 400 * GB, True, id="it counted fewer modules"),
        pytest.param(800 * GB, 400 * GB, True, id="it counted more"),
        pytest.param(50 * GB, 200 * GB, False, id="more than the modules move now"),
        pytest.param(200 * GB, 200 * GB, True, id="more than the table says: it was measured with the same table"),
    ],
)
def test_an_agent_that_counts_modules_in_another_way_keeps_a_measured_peak(
    tmp_path: Path, before: float, now: float, is_kept: bool
) -> None:
    disk = StateDir(tmp_path)
    save_peak(disk, "a", before, MEASURED)
    older = json.loads((tmp_path / NAME).read_text())
    older.pop("counting", None)
    (tmp_path / NAME).write_text(json.dumps(older))
    assert load_peak(disk, "a", now) == (MEASURED if is_kept else None)


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"[]",
        b"{",
        b"\xff\xfe",
        b'{"machine":"a"}',
        b'{"machine":"a","bytes_per_s":{},"source":"Measured"}',
        b'{"machine":"a","bytes_per_s":{"0":-1},"source":"Measured"}',
        b'{"machine":"a","bytes_per_s":{"0":NaN},"source":"Measured"}',
        b'{"machine":"a","bytes_per_s":{"x":1},"source":"Measured"}',
        b'{"machine":"a","bytes_per_s":{"0":1},"source":"Hearsay"}',
        b'{"machine":"a","bytes_per_s":{"0":1},"source":"Measured","memory_bytes_per_s":"much"}',
    ],
)
def test_a_kept_peak_that_is_garbage_is_none(tmp_path: Path, garbage: bytes) -> None:
    (tmp_path / NAME).write_bytes(garbage)
    assert load_peak(StateDir(tmp_path), "a", None) is None
    assert load_peak(StateDir(tmp_path), "a", 400 * GB) is None


def test_a_machine_is_named_by_its_processors(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name : Xeon X\n\nprocessor : 1\nmodel name : Xeon X\n")
    assert machine_name(Files(proc=tmp_path)) == "2 x Xeon X"
    assert machine_name(Files(proc=tmp_path / "nothing")) == "unknown"


@pytest.mark.parametrize(
    ("table", "gb_per_s"),
    [
        pytest.param(b"".join(module(f"CPU0_DIMM_{letter}1") for letter in "ABCDEFGH"), 204.8, id="8 x DDR4-3200"),
        pytest.param(module("DIMM_A1") + module("DIMM_A2") + module("DIMM_B1"), 51.2, id="two on one channel"),
        pytest.param(dell(8, 8), 409.6, id="Dell: 2 x 8"),
        pytest.param(dell(8, 16), 409.6, id="Dell: 2 x 8 of 16"),
        pytest.param(dell(12, 12, kind=DDR5), 614.4, id="Dell: 2 x 12 of DDR5"),
        pytest.param(dell(12, 12), 307.2, id="Dell: 2 x 12 of DDR4 on six channels"),
        pytest.param(dell(12, 16), 409.6, id="Dell: 2 x 12 of 16 on eight channels"),
        pytest.param(dell(16, 16), 409.6, id="Dell: 2 x 16 on eight channels"),
        pytest.param(dell(16, 16, kind=DDR5), 409.6, id="Dell: 2 x 16 of DDR5, which twelve channels do not share"),
        pytest.param(dell(24, 24, kind=DDR5), 614.4, id="Dell: 2 x 24 on twelve channels"),
        pytest.param(dell(12, 12, mt_per_s=2400), 153.6, id="Dell: 2 x 12 of older DDR4 on four channels"),
        pytest.param(dell(2, 16), 102.4, id="Dell: 2 x 2 of 16"),
        pytest.param(dell(3, 16), 153.6, id="Dell: 2 x 3 of 16"),
        pytest.param(dell(1, 16), 51.2, id="Dell: 2 x 1 of 16"),
        pytest.param(dell(11, 11), 204.8, id="an odd number that is told: few"),
        pytest.param(dell(16, 16, kind=2), 204.8, id="a type that is not told: few"),
        pytest.param(b"".join(module(f"DIMM_{c}{n}") for c in "AB" for n in (1, 2, 3)), 51.2, id="three on each"),
        pytest.param(module("DIMM1") + module("DIMM2"), 51.2, id="names without a channel count each"),
        pytest.param(module("DIMM_A1", bank="P0") + module("DIMM_A1", bank="P1"), 51.2, id="two sockets"),
        pytest.param(module("DIMM_A1") + module("DIMM_B1", size=0), 25.6, id="an empty place"),
        pytest.param(module("DIMM_A1", mt_per_s=0) + module("DIMM_B1"), 25.6, id="a speed that is not told"),
        pytest.param(module("DIMM_A1", width=0xFFFF), 25.6, id="a width that is not told"),
        pytest.param(OTHER + NAMELESS + module("DIMM_A1", mt_per_s=4800) + LAST + module("DIMM_B1"), 38.4, id="others"),
    ],
)
def test_memory_moves_what_its_channels_do(tmp_path: Path, table: bytes, gb_per_s: float) -> None:
    (tmp_path / "firmware/dmi/tables").mkdir(parents=True)
    (tmp_path / "firmware/dmi/tables/DMI").write_bytes(table)
    assert read_memory_bytes_per_s(Files(sys=tmp_path)) == pytest.approx(gb_per_s * GB)


def test_memory_that_is_not_told_is_unknown(tmp_path: Path) -> None:
    assert read_memory_bytes_per_s(Files(sys=tmp_path)) is None
    assert bytes_per_s_from(OTHER + LAST) is None


@given(st.binary(max_size=300), st.integers(0, 200))
def test_any_table_is_read_without_harm(garbage: bytes, cut: int) -> None:
    for table in (garbage, module("DIMM_A1") + garbage, (module("DIMM_A1") + module("DIMM_B1"))[:cut]):
        rate = bytes_per_s_from(table)
        assert rate is None or (math.isfinite(rate) and rate > 0)
